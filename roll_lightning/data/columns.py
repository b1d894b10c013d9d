"""The forms that supervised rows come in, told apart by their columns."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, get_args

from roll_lightning.data.jsonl import Row, require_column
from roll_lightning.errors import ConfigError, DataError

Form = Literal["messages", "completion", "instruction", "text"]

# What every row of a form must have. `instruction` rows may have an `input`, too.
NEEDED: dict[Form, tuple[str, ...]] = {
    "messages": ("messages",),
    "completion": ("prompt", "completion"),
    "instruction": ("instruction", "output"),
    "text": ("text",),
}
_ALL_FORMS = "; or ".join(" and ".join(columns) for columns in NEEDED.values())


def find_form(rows: Sequence[Row], form: Form | None = None) -> Form:
    """The form of a dataset: the one asked for, else that of its first row; every row must have it.

    A column whose value is null counts as not there, because formats with a schema give every row all columns.

    Raises:
        ConfigError: ``form`` is none of the forms.
        DataError: there are no rows, the first row has no form or several, or a later row has another one (names both
            rows and their columns) or lacks a value.
    """
    if form is not None and form not in get_args(Form):
        raise ConfigError(f"form is {form!r}; it must be one of {', '.join(get_args(Form))}, or null")
    if not rows:
        raise DataError("there are no rows to tokenise")
    form = form or _form_of_first(rows[0])
    for row in rows:
        _check(row, form, rows[0])
    return form


def _form_of_first(row: Row) -> Form:
    found = _forms(row)
    if len(found) > 1:
        names = " and ".join("/".join(NEEDED[form]) for form in found)
        raise DataError(f"{row.where} has both {names}; choose with data.form: {' or '.join(found)}")
    if found:
        return found[0]
    # Not a whole form: take the nearest one, so that the message names what is missing.
    for form, columns in NEEDED.items():
        if any(column in row.values for column in columns):
            return form
    require_column([row], "messages", f"supervised rows have {_ALL_FORMS}")
    return "messages"


def _forms(row: Row) -> list[Form]:
    return [form for form, columns in NEEDED.items() if all(row.values.get(name) is not None for name in columns)]


def _check(row: Row, form: Form, first: Row) -> None:
    missing = [name for name in NEEDED[form] if row.values.get(name) is None]
    if not missing:
        return
    others = [other for other in _forms(row) if other != form]
    if others:
        has, wanted = (" and ".join(NEEDED[each]) for each in (others[0], form))
        if row is first:
            raise DataError(f"{row.where} has {has}, but data.form is {form}, which needs {wanted}")
        raise DataError(
            f"{row.where} has {has}, but {first.where} has {wanted}; all rows of a dataset must have the same form: "
            "convert them, or make two datasets"
        )
    require_column([row], missing[0])
    raise DataError(f"{row.where}: {missing[0]} is empty; fill it in, or remove the row")
