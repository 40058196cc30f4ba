"""The reference pages are what the code gives."""

import pytest

from controller.api import errors


@pytest.mark.long
def test_pages_are_those_of_the_code_and_no_others() -> None:
    # Imported here: it imports the command line, the console and the controller's adapters.
    from tools import reference

    pages = reference.pages()
    differing = [
        name
        for name, text in pages.items()
        if not (file := reference.FOLDER / name).exists() or file.read_text("utf-8") != text
    ]
    assert not differing, "`make reference` writes docs/reference anew"
    written = {file.name for file in reference.FOLDER.iterdir()}
    assert written == {*pages, reference.ENDPOINT}
    codes = {value for name, value in vars(errors).items() if name.startswith("EXIT_")}
    assert {code for code, meaning in reference.exit_codes().items() if meaning} == codes
