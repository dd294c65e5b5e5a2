"""Any damage of a saved model is refused with a message, or does no harm."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oaxe.decoding.saved import CONFIG, FILES
from oaxe.decoding.translator import Translator
from oaxe.support.errors import UserError
from oaxe.text.subwords import Subwords
from tests.decoding.samples import translator


@pytest.fixture(scope="module")
def folder(subwords: Subwords, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("model")
    translator(subwords).save_pretrained(folder)
    return folder


@given(data=st.data(), name=st.sampled_from(FILES), cut=st.booleans())
def test_any_damage(data: st.DataObject, name: str, cut: bool, folder: Path) -> None:
    """One byte is another, or the end is missing."""
    whole = (folder / name).read_bytes()
    place = data.draw(st.integers(0, len(whole) - 1))
    other = bytes([whole[place] ^ data.draw(st.integers(1, 255))])
    try:
        (folder / name).write_bytes(whole[:place] + (b"" if cut else other + whole[place + 1 :]))
        Translator.from_pretrained(folder)
        assert name == CONFIG  # in which a number may have become another that is allowed
    except UserError:
        pass
    finally:
        (folder / name).write_bytes(whole)
    Translator.from_pretrained(folder)
