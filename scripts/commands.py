#!/usr/bin/env python3
"""Reads the commands of src/cli: each with its group, texts, arguments and options.

  commands.py            checks that the option tables of docs/cli.md are those of the commands
  commands.py --write    writes them there
"""
import collections
import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs/cli.md"
Option = collections.namedtuple("Option", "names value field meaning rules")
Command = collections.namedtuple("Command", "name group target summary example options")

TOKEN = re.compile(r'//[^\n]*|"(?:[^"\\]|\\.)*"|[\w:]+|\S')
FUNCTION = re.compile(r"^(?:std::vector<Option>|Option) (\w+)\(([^)]*)\) \{", re.M)
COMMAND = re.compile(r"^extern const Command (k\w+)\{", re.M)
LISTS = re.compile(r"^  std::vector<std::string> ([^;]*);", re.M)


def tokens(text):
    return [token for token in TOKEN.findall(text) if not token.startswith("//")]


def braced(words, at):
    """The end of the brackets that open at `at`."""
    depth = 0
    while True:
        depth += (words[at] in "{(") - (words[at] in "})")
        at += 1
        if depth == 0:
            return at


def parts(words):
    """The words between the commas of one level."""
    found, depth = [[]], 0
    for word in words:
        depth += (word in "{(") - (word in "})")
        if word == "," and depth == 0:
            found.append([])
        else:
            found[-1].append(word)
    return [part for part in found if part]


def text_of(words, arguments):
    """The text of string literals and parameters."""
    text = ""
    for word in words:
        if word.startswith('"'):
            text += word[1:-1].replace('\\"', '"').replace("\\\\", "\\")
        else:
            text += arguments.get(word, "")
    return text


def rules_of(words):
    if words == ["kRequired"]:
        return {"is_required": True}
    if words == ["kNotEmpty"]:
        return {"accepts": "not_empty"}
    rules = {}
    for part in parts(words[1:-1]):
        _, name, _, *value = part
        if value[0] == "{":
            rules[name] = [text_of(one, {}) for one in parts(value[1:-1])]
        else:
            rules[name] = text_of(value, {}) if value[0].startswith('"') else value[0].split("::")[-1]
    return rules


class Sources:
    """The functions that declare options, and the commands, by their names."""

    def __init__(self, folder):
        self.functions, self.commands, self.lists = {}, {}, set()
        for path in sorted(folder.glob("*.cc")) + sorted(folder.glob("*.h")):
            text = path.read_text(encoding="utf-8")
            for members in LISTS.findall(text):
                self.lists.update(re.findall(r"\w+", members))
            for match in FUNCTION.finditer(text):
                names = [part.split("&")[-1].strip() for part in match[2].split(",")]
                self.functions[match[1]] = names, self.body(text, match.end() - 1)
            for match in COMMAND.finditer(text):
                self.commands[match[1]] = self.body(text, match.end() - 1)
        text = (folder / "commands.cc").read_text(encoding="utf-8")
        self.order = re.findall(r"&(k\w+)", text)

    @staticmethod
    def body(text, begin):
        words = tokens(text[begin:])
        return words[:braced(words, 0)]

    def options(self, name, arguments=()):
        """The options that a function declares."""
        names, words = self.functions[name]
        texts = dict(zip(names, arguments))
        found, at = [], 1
        while at < len(words):
            if words[at] == "{" and words[at + 1].startswith('"'):
                end = braced(words, at)
                names, value, field, meaning, *rules = parts(words[at + 1:end - 1])
                found.append(Option(text_of(names, texts), text_of(value, texts), field[-1], text_of(meaning, texts),
                                    rules_of(rules[0]) if rules else {}))
            elif words[at] in self.functions and words[at + 1] == "(":
                end = braced(words, at + 1)
                found += self.options(words[at], [text_of(part, texts) or part[-1] for part in parts(words[at + 2:end - 1])])
            else:
                end = at + 1
            at = end
        # A field that is a parameter is the argument's.
        return [option._replace(field=texts.get(option.field, option.field)) for option in found]

    def command(self, name):
        fields = {}
        for part in parts(self.commands[name][1:-1]):
            if part[0] == ".":
                fields[part[1]] = part[3:]
        declares = next(word for part in parts(self.commands[name][1:-1]) for word in part if word in self.functions)
        return Command(text_of(fields["name"], {}), fields["group"][0].split("::")[-1], fields["target"][0].split("::")[-1],
                       text_of(fields["summary"], {}), text_of(fields["example"], {}), self.options(declares))

    def is_list(self, option):
        return option.field in self.lists


def read_commands(root=ROOT):
    """(Sources, [Command]), in the order of the list."""
    sources = Sources(root / "src/cli")
    return sources, [sources.command(name) for name in sources.order]


def is_argument(option):
    return not option.names.startswith("-")


def usage(sources, command):
    words = ["aetheris", command.name]
    if any(not is_argument(option) for option in command.options):
        words.append("[OPTIONS]")
    for option in filter(is_argument, command.options):
        name = option.names + ("…" if sources.is_list(option) else "")
        words.append(name if option.rules.get("is_required") else f"[{name}]")
    return " ".join(words)


def row(option):
    names = option.names.replace(",", ", ")
    shown = f"{names} {option.value}" if option.value else names
    rules = []
    if option.rules.get("choices") and not all(choice in option.meaning for choice in option.rules["choices"]):
        rules.append("one of " + ", ".join(option.rules["choices"]))
    if option.rules.get("is_required") and not is_argument(option):
        rules.append("required")
    if option.rules.get("variable"):
        rules.append(f"default: {option.rules['variable']}")
    if option.rules.get("needs"):
        rules.append(f"needs {option.rules['needs']}")
    if option.rules.get("excludes"):
        rules.append("not with " + ", ".join(option.rules["excludes"]))
    meaning = (option.meaning + "".join(f"; {rule}" for rule in rules)).replace("|", "\\|")
    return f"| `{shown}` | {meaning} |".replace("NODE|ID", "NODE\\|ID")


def table(sources, command):
    lines = [f"    {usage(sources, command)}"]
    if command.options:
        ordered = [option for option in command.options if is_argument(option)]
        ordered += [option for option in command.options if not is_argument(option)]
        lines += ["", "| | |", "|---|---|"] + [row(option) for option in ordered]
    return "\n".join(lines)


def written(page, sources, commands):
    """The page with the tables of the commands."""
    for command in commands:
        begin, end = f"<!-- options of {command.name} -->\n", "<!-- end of options -->\n"
        if page.count(begin) != 1:
            sys.exit(f"{PAGE.name} has no place for the options of {command.name}: {begin.strip()}")
        head, rest = page.split(begin)
        page = head + begin + "\n" + table(sources, command) + "\n\n" + end + rest[rest.index(end) + len(end):]
    return page


def main():
    page = PAGE.read_text(encoding="utf-8")
    new = written(page, *read_commands())
    if sys.argv[1:] == ["--write"]:
        PAGE.write_text(new, encoding="utf-8")
    elif new != page:
        sys.exit("the option tables of docs/cli.md are not those of src/cli; write them with: scripts/commands.py --write")


if __name__ == "__main__":
    main()
