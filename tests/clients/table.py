"""Writes what clients have shown into the table of hw-sim/README.md.

Usage: table.py README FOLDER NAME...: FOLDER/NAME/row has been written by `run`, as lines `date`,
`commit`, `result`, `took` and `seen`. Rows of other clients stay as they are. So does the row of a client
that is skipped now and was not when it was last tried: it has a date.
"""
import html
import os
import pathlib
import re
import sys
import tempfile

BEGIN, END = "<!-- clients: begin -->\n", "<!-- clients: end -->\n"
HEAD = "| client | date | commit | result | took | seen |\n|---|---|---|---|---|---|\n"
FIELDS = 5
# A program prints what it likes; a row is one line of bounded length.
CHARACTERS_MAX = 600


def cell(text):
    """Text of others, as one cell of a table."""
    text = " ".join(re.sub(r"[^\x20-\x7e]", " ", text).split())
    if len(text) > CHARACTERS_MAX:
        text = text[:CHARACTERS_MAX] + " ..."
    return html.escape(text, quote=False).replace("|", "\\|") or "nothing"


def rows_of(table):
    """The rows of a table, by their client."""
    return {line.split("|")[1].strip(): line for line in table.removeprefix(HEAD).splitlines(True)}


def updated(readme, new):
    """The text of the README with the new rows, `{client: fields}`."""
    before, begin, rest = readme.partition(BEGIN)
    table, end, after = rest.partition(END)
    if not (begin and end and table.startswith(HEAD)):
        sys.exit(f"table.py: the README has no table of clients between {BEGIN.strip()} and {END.strip()}")
    rows = rows_of(table)
    for client, fields in new.items():
        if fields[2] == "skipped" and "| skipped |" not in rows.get(client, "| skipped |"):
            continue
        rows[client] = "| " + " | ".join(map(cell, [client, *fields])) + " |\n"
    return before + BEGIN + HEAD + "".join(rows[client] for client in sorted(rows)) + END + after


def main():
    readme, folder, names = pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2]), sys.argv[3:]
    new = {}
    for name in names:
        fields = (folder / name / "row").read_text(errors="replace").split("\n")[:FIELDS]
        if len(fields) != FIELDS:
            sys.exit(f"table.py: the row of {name} has {len(fields)} fields, {FIELDS} are expected")
        new[name] = fields
    text = updated(readme.read_text(encoding="utf-8"), new)
    # In one step: a run that is stopped leaves the old file.
    with tempfile.NamedTemporaryFile("w", dir=readme.parent, delete=False, encoding="utf-8") as file:
        file.write(text)
    os.chmod(file.name, readme.stat().st_mode)
    os.replace(file.name, readme)


if __name__ == "__main__":
    main()
