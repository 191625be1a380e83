"""The file of a document server: its header, and how texts become one."""

import os
import secrets
import struct
import tempfile
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from pathlib import Path
from shutil import copyfileobj
from typing import IO, Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from tensoralg.core.errors import PersistenceError

__all__ = ["HEADER_BYTES", "Sizes", "Tokenize", "read_header", "write_document"]

Tokenize: TypeAlias = Callable[[str], tuple[Sequence[int], Sequence[tuple[int, int]]]]

MAGIC = b"TALGDOC\x01"
HEADER = struct.Struct("<8s4Q")
HEADER_BYTES = 64  # sections begin at multiples of eight bytes, so that they can be mapped
SEPARATOR = b"\n\n"


class Sizes(NamedTuple):
    """What a header counts: tokens, documents and bytes of text."""

    tokens: int
    documents: int
    text: int

    def sections(self) -> tuple[int, ...]:
        """Return the bytes of ids, first bytes, last bytes, documents and text."""
        wide = 8 * self.tokens
        return (
            4 * (self.tokens + self.tokens % 2),
            wide,
            wide,
            8 * (self.documents + 1),
            self.text,
        )


def read_header(path: Path) -> Sizes:
    """Read the sizes from the beginning of a file.

    Parameters
    ----------
    path : Path
        The file.

    Returns
    -------
    Sizes
        As its header states them.

    Raises
    ------
    FileNotFoundError
        There is no such file.
    PersistenceError
        Not a file of this format.
    """
    with path.open("rb") as file:
        head = file.read(HEADER_BYTES)
    if len(head) < HEADER_BYTES or not head.startswith(MAGIC[:-1]):
        raise PersistenceError(f"{path} is not a file of DocumentServer.write")
    magic, *sizes, _ = HEADER.unpack(head[: HEADER.size])
    if magic != MAGIC:
        raise PersistenceError(f"{path} has format version {magic[-1]}; this version reads 1")
    return Sizes(*sizes)


def write_document(path: Path, documents: Iterable[str | os.PathLike[str]], tokenize: Any) -> Sizes:
    """Tokenize documents into a file.

    Parameters
    ----------
    path : Path
        Where to; replaced in one step at the end.
    documents : iterable of str or PathLike
        Texts or paths of text files.
    tokenize : callable, object with `encode`, or None
        As for `DocumentServer.write`.

    Returns
    -------
    Sizes
        What was written.

    Raises
    ------
    TypeError, ValueError
        As for `DocumentServer.write`.
    """
    if isinstance(documents, str | os.PathLike):
        raise TypeError("documents must be an iterable of texts or paths; got a single one")
    split = _tokenizer(tokenize)
    path = Path(os.path.realpath(path))  # a link stays a link
    tokens = count = text = 0
    with ExitStack() as stack:
        parts = [stack.enter_context(tempfile.TemporaryFile(dir=path.parent)) for _ in range(5)]
        ids, starts, stops, first, texts = parts
        first.write(np.uint64(0).astype("<u8").tobytes())
        for number, document in enumerate(documents):
            encoded, numbers, spans = _document(number, document, split)
            if number:
                texts.write(SEPARATOR)
                text += len(SEPARATOR)
            ids.write(numbers.astype("<u4").tobytes())
            for file, column in ((starts, 0), (stops, 1)):
                file.write((spans[:, column] + text).astype("<u8").tobytes())
            texts.write(encoded)
            tokens, text, count = tokens + len(numbers), text + len(encoded), number + 1
            first.write(np.uint64(tokens).astype("<u8").tobytes())
        if tokens % 2:
            ids.write(bytes(4))
        sizes = Sizes(tokens, count, text)
        _put_together(path, sizes, parts)
    return sizes


def _put_together(path: Path, sizes: Sizes, parts: Sequence[IO[bytes]]) -> None:
    """Write header and sections beside the target, then move them there."""
    beside = path.with_name(f".{path.name}.{secrets.token_hex(8)}.part")
    try:
        with beside.open("xb") as whole:
            whole.write(HEADER.pack(MAGIC, *sizes, 0).ljust(HEADER_BYTES, b"\0"))
            for part in parts:
                part.seek(0)
                copyfileobj(part, whole)
            whole.flush()
            os.fsync(whole.fileno())  # the content is there before the name is
        os.replace(beside, path)
    finally:
        beside.unlink(missing_ok=True)


def _tokenizer(tokenize: Any) -> Tokenize:
    """Make a callable of what the user gave."""
    if tokenize is None:
        return _characters
    if callable(encode := getattr(tokenize, "encode", None)):
        for name in ("truncation", "padding"):
            if getattr(tokenize, name, None) is not None:
                raise ValueError(f"tokenize must have no {name}; call its no_{name}()")

        def split(text: str) -> tuple[Sequence[int], Sequence[tuple[int, int]]]:
            encoding = encode(text, add_special_tokens=False)
            if not (hasattr(encoding, "ids") and hasattr(encoding, "offsets")):
                raise TypeError(
                    "tokenize.encode must return an object with `ids` and `offsets`, as the "
                    f"package tokenizers has it; got {type(encoding).__name__}"
                )
            return encoding.ids, encoding.offsets

        return split
    if not callable(tokenize):
        raise TypeError(
            f"tokenize must be callable or have a method 'encode'; got {type(tokenize).__name__}"
        )
    checked: Tokenize = tokenize
    return checked


def _characters(text: str) -> tuple[Any, Any]:
    """Take code points for tokens."""
    codes = _code_points(text)
    places = np.arange(len(codes))
    return codes, np.stack([places, places + 1], axis=1)


def _code_points(text: str) -> npt.NDArray[np.uint32]:
    """Return the code points of a text."""
    return np.frombuffer(text.encode("utf-32-le", errors="surrogatepass"), dtype="<u4")


def _document(
    number: int, document: Any, tokenize: Tokenize
) -> tuple[bytes, npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Return a document's bytes, token ids, and first and last byte of every token."""
    name = f"document {number}"
    if isinstance(document, os.PathLike):
        name = f"document {number} ({os.fspath(document)})"
        try:
            # newlines stay as they are: offsets count the file's own characters
            document = Path(document).read_bytes().decode("utf-8")
        except UnicodeDecodeError as error:
            raise ValueError(f"{name} is not UTF-8: {error}") from None
    if not isinstance(document, str):
        raise TypeError(f"{name} must be a text or a path; got {type(document).__name__}")
    try:
        encoded = document.encode("utf-8")
    except UnicodeEncodeError as error:
        raise ValueError(f"{name} cannot be written as UTF-8: {error}") from None
    split = tokenize(document)
    if not isinstance(split, tuple) or len(split) != 2:
        raise TypeError(f"tokenize must return (ids, spans); got {type(split).__name__}")
    found, spans = split
    ids = _integers(name, "token ids", found, (-1,))
    places = _integers(name, "spans", spans, (len(ids), 2))
    if ids.size and not 0 <= ids.min() <= ids.max() < 2**32:
        raise ValueError(f"{name}: token ids must lie in 0 .. 2^32 - 1")
    inside = (places >= 0) & (places <= len(document))
    if not (inside.all() and (places[:, 0] <= places[:, 1]).all()):
        raise ValueError(f"{name}: spans must satisfy 0 <= start <= stop <= {len(document)}")
    if (np.diff(places, axis=0) < 0).any():
        raise ValueError(f"{name}: spans must not go back in the text")
    codes = _code_points(document)
    widths = 1 + sum((codes >= least).astype(np.int64) for least in (0x80, 0x800, 0x10000))
    bytes_before = np.concatenate([[0], np.cumsum(widths)])
    return encoded, ids, bytes_before[places]


def _integers(name: str, what: str, found: Any, shape: tuple[int, ...]) -> npt.NDArray[np.int64]:
    """Convert a tokenizer's result, or say what is wrong with it."""
    array = np.asarray(found)
    if array.size == 0 and shape[0] in (-1, 0):
        return np.empty((0, *shape[1:]), dtype=np.int64)
    if (
        array.dtype.kind not in "iu"
        or array.ndim != len(shape)
        or (shape[0] != -1 and array.shape != shape)
    ):
        raise ValueError(
            f"{name}: the tokenizer's {what} must be integers, one row for each token; "
            f"got shape {array.shape} and dtype {array.dtype}"
        )
    return array.astype(np.int64)
