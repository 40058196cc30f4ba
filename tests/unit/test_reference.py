"""The reference pages are what the code gives."""

from types import ModuleType

import pytest

from controller.api import errors


@pytest.fixture(scope="module")
def reference() -> ModuleType:
    """Imported here: it imports the command line, the console and the controller's adapters."""
    from tools import reference

    return reference


def test_pages_are_those_of_the_code(reference: ModuleType) -> None:
    differing = [
        name
        for name, text in reference.pages().items()
        if not (file := reference.FOLDER / name).exists() or file.read_text("utf-8") != text
    ]
    assert not differing, "`make reference` writes docs/reference anew"


def test_no_page_is_left_of_what_is_gone(reference: ModuleType) -> None:
    written = {file.name for file in reference.FOLDER.iterdir()}
    assert written == {*reference.pages(), reference.ENDPOINT}


def test_every_exit_code_has_a_meaning(reference: ModuleType) -> None:
    codes = {value for name, value in vars(errors).items() if name.startswith("EXIT_")}
    assert {code for code, meaning in reference.exit_codes().items() if meaning} == codes
