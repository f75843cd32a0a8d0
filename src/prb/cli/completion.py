"""`prb completion bash | zsh | fish`: a script for the shell, made from the same declarations as the help."""

# ruff: noqa: T201

from __future__ import annotations

import re
from typing import Literal, NamedTuple

from prb.cli import SETTINGS, VERBS, commands_of, settings_of
from prb.cli.parse import Switch, parser_of, print_json
from prb.config import Positional, Settings, config


@config
class CompletionConfig(Settings):
    """A script that completes verbs, commands, flags and their values: `eval "$(prb completion bash)"`."""

    shell: Positional[Literal["bash", "zsh", "fish"]]
    """bash, zsh (the same script, through bashcompinit), or fish (`prb completion fish | source`)."""


class Known(NamedTuple):
    """A flag of a command."""

    flag: str
    values: str
    """Those that it may have, if they are few."""
    what: str


def completion(config: CompletionConfig) -> None:
    script = fish() if config.shell == "fish" else bash(zsh=config.shell == "zsh")
    print_json({"shell": config.shell, "script": script}) if config.json else print(script)


def flags_of(command: str) -> list[Known]:
    kinds: dict[str, list[list[str]]] = {"train": [["light"], ["dpo"]], "grade": [[], ["--license"]]}
    found: dict[str, Known] = {}
    for args in kinds.get(command, [[]]):
        for action in parser_of(settings_of(command, args), command, everything=True).actions:
            metavar = action.metavar if isinstance(action.metavar, str) else ""
            values = metavar[1:-1].replace(",", " ") if metavar.startswith("{") else ""
            for flag in action.option_strings:
                if flag.startswith("--") and not (flag.startswith("--no-") and isinstance(action, Switch)):
                    sentence = re.split(r"\.(?: |$)(?=[^a-z]|$)", action.help or "")[0]
                    found[flag] = Known(flag, values, sentence.replace("%%", "%"))
    return list(found.values())


def bash(*, zsh: bool) -> str:
    second = {verb: " ".join(commands) for verb in VERBS if (commands := commands_of(verb))}
    flags = {command: flags_of(command) for command in SETTINGS}
    lines = ["autoload -U +X bashcompinit && bashcompinit"] if zsh else []
    lines += [
        "_prb() {",
        '  local cur="${COMP_WORDS[COMP_CWORD]}" prev="${COMP_WORDS[COMP_CWORD-1]}" verb="${COMP_WORDS[1]}" words=""',
        f'  case "$verb" in {"|".join(second)}) verb="$verb ${{COMP_WORDS[2]}}" ;; esac',
        '  case "$COMP_CWORD $verb" in',
        f'    "1 "*) words="{" ".join(VERBS)}" ;;',
        *(f'    "2 {verb} "*) words="{commands}" ;;' for verb, commands in second.items()),
        "  esac",
        '  [ "$words" ] || case "$verb $prev" in',
        *(f'    "{name} {f.flag}") words="{f.values}" ;;' for name, known in flags.items() for f in known if f.values),
        "  esac",
        '  [ "$words" ] || case "$cur" in -*) case "$verb" in',
        *(f'    "{name}") words="{" ".join(f.flag for f in known)}" ;;' for name, known in flags.items()),
        "  esac ;; esac",
        '  if [ "$words" ]; then COMPREPLY=($(compgen -W "$words" -- "$cur")); return; fi',
        '  COMPREPLY=($(compgen -f -- "$cur"))',
        "}",
        "complete -o filenames -F _prb prb",
    ]
    return "\n".join(lines)


def fish() -> str:
    lines = [
        f"complete -c prb -f -n __fish_use_subcommand -a {verb} -d {_quoted(what)}" for verb, what in VERBS.items()
    ]
    for command in SETTINGS:
        verb, _, second = command.partition(" ")
        seen = f"__fish_seen_subcommand_from {verb}"
        if second:
            others = f"not __fish_seen_subcommand_from {' '.join(commands_of(verb))}"
            lines.append(f"complete -c prb -f -n '{seen}; and {others}' -a {second}")
            seen += f"; and __fish_seen_subcommand_from {second}"
        for known in flags_of(command):
            values = f" -x -a '{known.values}'" if known.values else ""
            lines.append(f"complete -c prb -n '{seen}' -l {known.flag[2:]}{values} -d {_quoted(known.what)}")
    return "\n".join(lines)


def _quoted(text: str) -> str:
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"
