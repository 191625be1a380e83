"""Random access to a tokenized text by token offset, from a memory-mapped file."""

import os
from collections.abc import Iterable
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from tensoralg.core.errors import PersistenceError
from tensoralg.core.validation import nonnegative_integer
from tensoralg.nn.document_writer import HEADER_BYTES, Tokenize, read_header, write_document

__all__ = ["DocumentServer"]

PathLike: TypeAlias = "str | os.PathLike[str]"


class Stretch(NamedTuple):
    """Token offsets of one document: ``start .. stop-1``."""

    start: int
    stop: int


class DocumentServer:
    """Tokens and text of a file, by token offset, without loading it.

    Parameters
    ----------
    path : str or PathLike
        A file that `write` made.

    Raises
    ------
    FileNotFoundError
        There is no such file.
    PersistenceError
        It is not such a file, was cut short, or contradicts itself.

    Notes
    -----
    The file holds a header, the token ids, for every token the first and last byte of its text, the
    beginnings of the documents, and the text in UTF-8. It is mapped into memory: opening takes no
    longer for a large one, and a stretch costs what it holds. Numbers only are read, never code.

    Examples
    --------
    >>> import tempfile, pathlib
    >>> path = pathlib.Path(tempfile.mkdtemp()) / "letters.tokens"
    >>> server = DocumentServer.write(path, ["ein Öl", "two"])
    >>> len(server), server.documents
    (9, 2)
    >>> server.tokens(4, 6)
    tensor([214, 108])
    >>> server.text(4, 6), server.document(1)
    ('Öl', Stretch(start=6, stop=9))
    """

    def __init__(self, path: PathLike) -> None:
        self.path = Path(path)
        self._sizes = read_header(self.path)
        content = np.memmap(self.path, dtype=np.uint8, mode="r")
        sections = self._sizes.sections()
        if len(content) != (needed := HEADER_BYTES + sum(sections)):
            raise PersistenceError(
                f"{self.path} must have {needed} bytes by its header; got {len(content)}"
            )
        ends = np.cumsum([HEADER_BYTES, *sections]).tolist()
        ids, starts, stops, first, text = (content[a:b] for a, b in pairwise(ends))
        self._ids = ids.view("<u4")[: self._sizes.tokens]
        self._starts: npt.NDArray[np.uint64] = starts.view("<u8")
        self._stops: npt.NDArray[np.uint64] = stops.view("<u8")
        self._first: npt.NDArray[np.uint64] = first.view("<u8")
        self._text = text
        if int(self._first[-1]) != self._sizes.tokens or int(self._first[0]) != 0:
            raise PersistenceError(f"{self.path}: its documents do not end with its tokens")

    @classmethod
    def write(
        cls,
        path: PathLike,
        documents: Iterable[str | os.PathLike[str]],
        tokenize: Tokenize | Any = None,
    ) -> "DocumentServer":
        """Tokenize documents into a file and open it.

        Parameters
        ----------
        path : str or PathLike
            Where to; replaced once everything is written, so an interruption leaves no half file.
        documents : iterable of str or PathLike
            Texts, or paths of text files in UTF-8. One document at a time is in memory.
        tokenize : callable or tokenizers.Tokenizer, optional
            ``tokenize(text)`` returns token ids in 0 .. 2^32 - 1 and, for each of them, the
            characters ``(start, stop)`` that it stands for, neither going back; an object with
            `encode`, as those of the package tokenizers, is used without its special tokens;
            truncation and padding have to be off.
            The default takes every character for a token, its code point for the id.

        Returns
        -------
        DocumentServer
            The file, opened.

        Raises
        ------
        TypeError
            `documents` is a single text, or holds something that is neither text nor path;
            a tokenizer that returns something else.
        ValueError
            A text that UTF-8 cannot hold (lone surrogates), a file that is not UTF-8, ids or
            spans out of range (the message names the document), or a tokenizer that cuts or pads.
        """
        write_document(Path(path), documents, tokenize)
        return cls(path)

    def __len__(self) -> int:
        return self._sizes.tokens

    def __repr__(self) -> str:
        return f"DocumentServer({str(self.path)!r}, tokens={len(self)}, documents={self.documents})"

    def __reduce__(self) -> tuple[type["DocumentServer"], tuple[Path]]:
        return type(self), (self.path,)  # a worker process maps the file anew

    @property
    def documents(self) -> int:
        """Number of documents in the file."""
        return self._sizes.documents

    def document(self, number: int) -> Stretch:
        """Look up where a document lies.

        Parameters
        ----------
        number : int
            0 .. documents - 1, in the order of writing.

        Returns
        -------
        Stretch
            Its token offsets ``(start, stop)``.

        Raises
        ------
        IndexError
            There is no such document.
        """
        place = _index("number", number)
        if not place < self.documents:
            raise IndexError(
                f"number must lie in 0 .. {self.documents - 1}; got {place}"
                if self.documents
                else f"number is {place}, and the file has no documents"
            )
        found = Stretch(int(self._first[place]), int(self._first[place + 1]))
        if not found.start <= found.stop <= len(self):
            raise PersistenceError(f"{self.path}: the offsets of document {place} are damaged")
        return found

    def document_at(self, offset: int) -> int:
        """Look up to which document a token belongs.

        Parameters
        ----------
        offset : int
            0 .. len(self) - 1.

        Returns
        -------
        int
            The document's number.

        Raises
        ------
        IndexError
            There is no such token.
        """
        place = _index("offset", offset)
        self._check(place, place + 1)
        number = int(np.searchsorted(self._first, np.uint64(place), side="right")) - 1
        if number < 0 or not self.document(number).start <= place < self.document(number).stop:
            raise PersistenceError(f"{self.path}: the offsets of its documents are damaged")
        return number

    def tokens(self, start: int, stop: int) -> Tensor:
        """Return the ids of a stretch of tokens.

        Parameters
        ----------
        start, stop : int
            The tokens ``start .. stop-1``.

        Returns
        -------
        Tensor of int64, shape (stop - start,)
            A copy.

        Raises
        ------
        IndexError
            Not ``0 <= start <= stop <= len(self)``; negative offsets do not count from the end.
        """
        start, stop = _index("start", start), _index("stop", stop)
        self._check(start, stop)
        return torch.from_numpy(self._ids[start:stop].astype(np.int64))

    def text(self, start: int, stop: int) -> str:
        """Return the text of a stretch of tokens, as it was written.

        Parameters
        ----------
        start, stop : int
            The tokens ``start .. stop-1``.

        Returns
        -------
        str
            From the first token's first character to the last one's last, so what lies between
            tokens is there, but nothing around them; a blank line between documents. A token that
            is a part of a character gives the whole of it.

        Raises
        ------
        IndexError
            Not ``0 <= start <= stop <= len(self)``.
        PersistenceError
            The file's offsets point outside its text.
        """
        start, stop = _index("start", start), _index("stop", stop)
        self._check(start, stop)
        if start == stop:
            return ""
        first, last = int(self._starts[start]), int(self._stops[stop - 1])
        if not first <= last <= self._sizes.text:
            raise PersistenceError(f"{self.path}: token offsets point outside its text")
        try:
            return self._text[first:last].tobytes().decode("utf-8")
        except UnicodeDecodeError as error:
            raise PersistenceError(f"{self.path}: its text is damaged ({error})") from None

    def _check(self, start: int, stop: int) -> None:
        """Raise for a stretch that is not in the file."""
        if not start <= stop <= len(self):
            raise IndexError(
                f"a stretch must satisfy 0 <= start <= stop <= {len(self)}; "
                f"got start={start}, stop={stop}"
            )


def _index(name: str, value: Any) -> int:
    """Return an offset; a negative one is an IndexError as for any other place outside."""
    try:
        return nonnegative_integer(name, value)
    except ValueError as error:
        raise IndexError(str(error)) from None
