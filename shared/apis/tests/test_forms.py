"""Forms: read as engines read them, and edited without touching another byte."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pointsman_apis.forms import edit_form, is_form, read_again, read_form
from pointsman_core.refusal import Refusal

BOUNDARY = "x1"
KIND = f"multipart/form-data; boundary={BOUNDARY}"


def form(*parts: tuple[str, bytes], file: bytes | None = None) -> bytes:
    pieces = [
        b'--x1\r\nContent-Disposition: form-data; name="%b"\r\n\r\n%b\r\n' % (name.encode(), value)
        for name, value in parts
    ]
    if file is not None:
        head = b'--x1\r\nContent-Disposition: form-data; name="file"; filename="a.wav"\r\nContent-Type: x\r\n\r\n'
        pieces.append(head + file + b"\r\n")
    return b"".join((*pieces, b"--x1--\r\n"))


NAMES = st.text(alphabet="abcdefgh_", min_size=1, max_size=8)
VALUES = st.text(max_size=20).filter(lambda text: "--x1" not in text)


@given(st.dictionaries(NAMES, VALUES, max_size=4), st.binary(max_size=40).filter(lambda data: b"--x1" not in data))
def test_members_and_files_are_found_with_and_without_the_content_type(fields: dict[str, str], file: bytes) -> None:
    body = form(*((name, value.encode()) for name, value in fields.items()), file=file)
    read = read_form(body, KIND)
    assert {field.name: field.value for field in read.fields} == fields
    assert read.files == 1
    assert is_form(body)
    assert read_again(body) == read


@given(VALUES.filter(bool), VALUES, st.binary(max_size=40).filter(lambda data: b"--x1" not in data))
def test_an_edit_changes_the_value_and_no_other_byte(before: str, after: str, file: bytes) -> None:
    parts = ("language", b"en"), ("model", before.encode())
    body = form(*parts, file=file)
    assert edit_form(body, {"model": after, "absent": "x"}) == form(parts[0], ("model", after.encode()), file=file)
    assert edit_form(body, {}) is body


@pytest.mark.parametrize(
    ("body", "kind", "status"),
    [
        (form(("model", b"m")), "application/json", 415),
        (form(("model", b"m")), "multipart/form-data", 415),
        (form(("model", b"m")), f"{KIND}; charset=utf-16", 415),
        (form(("model", b"m")), "multipart/form-data; boundary=other", 400),
        (form(("model", b"m"))[:-6], KIND, 400),
        (b"preamble\r\n" + form(("model", b"m")), KIND, 400),
        (form(("model", b"\xff")), KIND, 400),
        (form(("model", b"m")).replace(b'; name="model"', b""), KIND, 400),
    ],
)
def test_a_form_that_readers_could_read_differently_is_refused(body: bytes, kind: str, status: int) -> None:
    with pytest.raises(Refusal) as refused:
        read_form(body, kind)
    assert refused.value.status == status


def test_a_member_that_occurs_twice_has_no_value() -> None:
    with pytest.raises(Refusal) as refused:
        read_form(form(("model", b"a"), ("model", b"b")), KIND).read_member("model")
    assert refused.value.code == "duplicate_member"
