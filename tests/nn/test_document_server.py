"""Tokens and text by offset: unicode, bounds, damaged files, nothing that runs code."""

import os
import pickle
import struct

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tensoralg.core.errors import PersistenceError
from tensoralg.nn import DocumentServer, RandomAccessReader
from tensoralg.nn.document_writer import HEADER_BYTES

TEXTS = ["plain words", "", "Öl, naïve: 数学 — 𝔸😀!", "é\r\ncombining é", "last"]


@pytest.fixture
def path(tmp_path):
    return tmp_path / "texts.tokens"


def words(text):
    """Ids and spans of words of letters; ids are lengths."""
    spans, start = [], None
    for place, letter in enumerate(text + " "):
        if letter.isalpha() and start is None:
            start = place
        elif not letter.isalpha() and start is not None:
            spans.append((start, place))
            start = None
    return [stop - start for start, stop in spans], spans


def test_characters_are_the_default(path):
    server = DocumentServer.write(path, TEXTS)
    assert len(server) == sum(map(len, TEXTS))
    assert server.documents == len(TEXTS)
    for number, text in enumerate(TEXTS):
        start, stop = server.document(number)
        assert server.tokens(start, stop).tolist() == [ord(letter) for letter in text]
        assert server.text(start, stop) == text
        for place in range(start, stop):
            assert server.document_at(place) == number
            assert server.text(place, place + 1) == text[place - start]


@settings(deadline=None, max_examples=60)
@given(st.lists(st.text(max_size=12), max_size=5), st.data())
def test_any_stretch_of_any_text(tmp_path_factory, texts, data):
    server = DocumentServer.write(tmp_path_factory.mktemp("any") / "t", iter(texts))
    letters = [(number, letter) for number, text in enumerate(texts) for letter in text]
    start = data.draw(st.integers(0, len(letters)))
    stop = data.draw(st.integers(start, len(letters)))
    assert server.tokens(start, stop).tolist() == [ord(one) for _, one in letters[start:stop]]
    expected = ""
    for place in range(start, stop):
        if place > start:
            expected += "\n\n" * (letters[place][0] - letters[place - 1][0])
        expected += letters[place][1]
    assert server.text(start, stop) == expected


def test_words_and_what_lies_between(path):
    server = DocumentServer.write(path, ["Öl, 数学!", "two  words."], words)
    assert server.tokens(0, 4).tolist() == [2, 2, 3, 5]
    assert [server.text(k, k + 1) for k in range(4)] == ["Öl", "数学", "two", "words"]
    assert server.text(0, 2) == "Öl, 数学"
    assert server.text(2, 4) == "two  words"
    assert server.text(1, 3) == "数学!\n\ntwo"


def test_tokens_that_share_a_character(path):
    """Byte-level vocabularies split characters: both parts stand for the whole of it."""
    server = DocumentServer.write(path, ["x😀"], lambda text: ([1, 2, 3], [(0, 1), (1, 2), (1, 2)]))
    assert server.text(1, 2) == server.text(2, 3) == server.text(1, 3) == "😀"


class Encoding:
    ids, offsets = [7, 2**32 - 1], [(0, 1), (1, 3)]


class Tokenizer:
    def encode(self, text, add_special_tokens=True):
        assert not add_special_tokens
        return Encoding


def test_an_object_with_encode(path):
    server = DocumentServer.write(path, ["abc"], Tokenizer())
    assert server.tokens(0, 2).tolist() == [7, 4294967295]
    assert server.tokens(0, 2).dtype == torch.int64
    assert server.text(1, 2) == "bc"


@pytest.mark.parametrize("name", ["truncation", "padding"])
def test_tokenizers_that_cut_or_pad_are_refused(path, name):
    """Part of the text would be missing, or tokens stand for none of it."""
    tokenizer = Tokenizer()
    setattr(tokenizer, name, {"max_length": 128})
    with pytest.raises(ValueError, match=rf"must have no {name}; call its no_{name}\(\)"):
        DocumentServer.write(path, ["abc"], tokenizer)
    setattr(tokenizer, name, None)
    assert len(DocumentServer.write(path, ["abc"], tokenizer)) == 2


class IdsOnly:
    def encode(self, text, add_special_tokens=True):
        return [1, 2]


@pytest.mark.parametrize("tokenizer", [IdsOnly(), lambda text: [1, 2, 3], lambda text: None])
def test_tokenizers_without_places(path, tokenizer):
    with pytest.raises(TypeError, match=r"tokenize.* must return"):
        DocumentServer.write(path, ["abc"], tokenizer)


def test_files_as_documents(path, tmp_path):
    (tmp_path / "a.txt").write_bytes("naïve\r\n".encode())
    server = DocumentServer.write(path, [tmp_path / "a.txt", "b"])
    assert server.text(*server.document(0)) == "naïve\r\n"
    (tmp_path / "b.txt").write_bytes(b"\xff\xfe")
    with pytest.raises(ValueError, match=r"document 1 \(.*b.txt\) is not UTF-8"):
        DocumentServer.write(path, ["a", tmp_path / "b.txt"])
    with pytest.raises(FileNotFoundError):
        DocumentServer.write(path, [tmp_path / "nothing.txt"])


@pytest.mark.parametrize("texts", [[], [""], ["", ""]])
def test_nothing_to_serve(path, texts):
    server = DocumentServer.write(path, texts)
    assert (len(server), server.documents) == (0, len(texts))
    assert server.tokens(0, 0).shape == (0,)
    assert server.text(0, 0) == ""
    with pytest.raises(IndexError):
        server.document_at(0)
    with pytest.raises(IndexError):
        server.document(len(texts))


@pytest.mark.parametrize("bounds", [(-1, 2), (0, 6), (3, 2), (6, 6), (0, -1)])
@pytest.mark.parametrize("method", ["tokens", "text"])
def test_bounds(path, method, bounds):
    server = DocumentServer.write(path, ["abcde"])
    with pytest.raises(IndexError, match=r"start|stop"):
        getattr(server, method)(*bounds)


def test_numbers_out_of_range(path):
    server = DocumentServer.write(path, ["abc", "de"])
    for number in (-1, 2):
        with pytest.raises(IndexError, match="number"):
            server.document(number)
    for offset in (-1, 5):
        with pytest.raises(IndexError, match=r"offset|stretch"):
            server.document_at(offset)
    with pytest.raises(TypeError, match="start must be an integer"):
        server.tokens(0.0, 1)
    assert server.tokens(np.int64(1), np.uint8(3)).tolist() == [98, 99]


@pytest.mark.parametrize(
    ("ids", "spans", "message"),
    [
        ([1, 2], [(0, 1)], "spans must be integers, one row"),
        ([1.5], [(0, 1)], "ids must be integers"),
        ([-1], [(0, 1)], "token ids must lie in"),
        ([2**32], [(0, 1)], "token ids must lie in"),
        ([1], [(0, 4)], "0 <= start <= stop <= 3"),
        ([1], [(-1, 1)], "0 <= start <= stop <= 3"),
        ([1], [(2, 1)], "0 <= start <= stop <= 3"),
        ([1, 2], [(1, 2), (0, 3)], "must not go back"),
    ],
)
def test_a_tokenizer_that_errs(path, ids, spans, message):
    with pytest.raises(ValueError, match=f"document 0.*{message}"):
        DocumentServer.write(path, ["abc"], lambda text: (ids, spans))
    assert not path.exists()


def test_texts_that_cannot_be_written(path):
    with pytest.raises(ValueError, match="document 1 cannot be written as UTF-8"):
        DocumentServer.write(path, ["fine", "lone \ud800"])
    with pytest.raises(TypeError, match="got a single one"):
        DocumentServer.write(path, "abc")
    with pytest.raises(TypeError, match="document 0 must be a text or a path; got int"):
        DocumentServer.write(path, [3])
    with pytest.raises(TypeError, match="tokenize must be callable"):
        DocumentServer.write(path, ["abc"], 3)


def test_an_interrupted_write_leaves_the_old_file(path, tmp_path):
    DocumentServer.write(path, ["old"])

    def texts():
        yield "new"
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        DocumentServer.write(path, texts())
    assert DocumentServer(path).text(0, 3) == "old"
    assert os.listdir(tmp_path) == [path.name]


def test_an_open_server_keeps_its_file_when_it_is_replaced(path):
    old = DocumentServer.write(path, ["old"])
    new = DocumentServer.write(path, ["newer"])
    assert (old.text(0, 3), new.text(0, 5)) == ("old", "newer")


def test_other_files_are_refused(path, tmp_path):
    with pytest.raises(FileNotFoundError):
        DocumentServer(path)
    for content in (b"", b"short", b"x" * 200, pickle.dumps([1, 2, 3]) * 30):
        path.write_bytes(content)
        with pytest.raises(PersistenceError, match="is not a file of"):
            DocumentServer(path)
    np.save(tmp_path / "a.npy", np.arange(100))
    with pytest.raises(PersistenceError):
        DocumentServer(tmp_path / "a.npy")


def test_damaged_files_are_refused(path):
    DocumentServer.write(path, ["abcdé", "fgh"])
    good = path.read_bytes()
    for content in (good[:-1], good + b"x", good[:HEADER_BYTES]):
        path.write_bytes(content)
        with pytest.raises(PersistenceError, match=r"must have \d+ bytes"):
            DocumentServer(path)
    path.write_bytes(good[:7] + b"\x02" + good[8:])
    with pytest.raises(PersistenceError, match="version 2"):
        DocumentServer(path)
    huge = good[:8] + struct.pack("<Q", 2**61) + good[16:]
    path.write_bytes(huge)
    with pytest.raises(PersistenceError, match="must have"):
        DocumentServer(path)


def test_damaged_sections_do_not_give_wrong_text(path):
    tokens = len(DocumentServer.write(path, ["abcdé", "fgh"]))
    good = path.read_bytes()
    starts = HEADER_BYTES + 4 * (tokens + tokens % 2)
    path.write_bytes(good[:starts] + struct.pack("<Q", 10**6) + good[starts + 8 :])
    server = DocumentServer(path)
    with pytest.raises(PersistenceError, match="outside its text"):
        server.text(0, 1)
    assert server.text(1, 2) == "b"
    first = starts + 16 * tokens
    for place, value in ((first, 1), (first + 16, tokens + 1)):
        path.write_bytes(good[:place] + struct.pack("<Q", value) + good[place + 8 :])
        with pytest.raises(PersistenceError, match="documents"):
            DocumentServer(path)
    path.write_bytes(good[: first + 8] + struct.pack("<Q", tokens + 5) + good[first + 16 :])
    for number in (0, 1):
        with pytest.raises(PersistenceError, match=f"document {number} are damaged"):
            DocumentServer(path).document(number)
    with pytest.raises(PersistenceError, match="damaged"):
        DocumentServer(path).document_at(tokens - 1)
    path.write_bytes(good.replace("é".encode(), b"\xff\xff"))
    with pytest.raises(PersistenceError, match="damaged"):
        DocumentServer(path).text(0, 5)


def test_a_worker_maps_the_file_anew(path):
    server = DocumentServer.write(path, ["abc" * 10_000])
    packed = pickle.dumps(server)
    assert len(packed) < 1000
    assert pickle.loads(packed).text(3, 6) == "abc"


def test_a_reader_over_a_server(path):
    """Letters that were seen before are no surprise; a reader of the file skips them."""
    server = DocumentServer.write(path, ["a" * 60 + "new text here, " + "a" * 60])
    seen = torch.zeros(2**16)

    def losses(start, stop):
        found = server.tokens(start, stop)
        surprise = -((seen[found] + 0.01) / (seen.sum() + 1)).log().clamp(max=0.0)
        seen.index_add_(0, found, torch.ones(len(found)))
        return surprise

    reading = RandomAccessReader(5, 5, 0.3, 20).read(len(server), losses)
    read = "".join(server.text(*window) for window in reading)
    assert read.count("a") < 80
    assert set("new txthr,") <= set(read)
