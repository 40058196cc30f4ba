"""`llumctl set` shows and changes the settings that may change while the cluster runs."""

import codecs
import difflib
import os
import stat
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from controller.api.errors import EXIT_WOULD_CHANGE, LlumctlError, RefusedError, UsageError
from controller.api.state import user_files
from controller.api.text.quantities import printable, setting_value
from llumctl import arguments, connect, meant, output
from llumctl.commands.options import (
    Cluster,
    ClusterConfig,
    DryRun,
    Flags,
    IfRevision,
    Model,
    OutputFormat,
    Reason,
)
from llumctl.config import config_file, toml_text
from llumctl.config.config_file import ConfigFile
from llumctl.output import Format

if TYPE_CHECKING:
    from controller.api.client import ControlClient
    from controller.api.operations.on_cluster import (
        SetSettings,
        Setting,
        SettingChanges,
        SettingList,
    )
    from controller.api.state.run_state import RunState
    from controller.api.wire import SettingValue
    from controller.api.wire.status import LevelStatus

HINT = "llumctl set migration.max_moves=2"


def set_settings(
    given: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[KEY=VALUE...|KEY]",
            help="For example migration.max_moves=2. A KEY alone is shown; a table, such as"
            " migration, with all its keys. Without any, all are shown.",
            show_default=False,
        ),
    ] = None,
    save: Annotated[
        bool, typer.Option("--save", help="Write the changes into the configuration file too.")
    ] = False,
    toml: Annotated[
        bool,
        typer.Option(
            "--toml", help="Show settings that differ from the configuration file, as lines for it."
        ),
    ] = False,
    config: ClusterConfig = None,
    dry_run: DryRun = False,
    reason: Reason = "",
    if_revision: IfRevision = None,
    output_format: OutputFormat = Format.TABLE,
    cluster: Cluster = None,
    model: Model = None,  # noqa: ARG001  # its callback notes it
) -> None:
    """Show the running cluster's settings, or change some.

    If one of several changes is wrong, none is made. Without --model the changes are made for each
    model of the cluster. Settings of tables that no model has for itself, such as endpoint, have
    one value for all models.
    """
    if given and (len(given) > 1 or "=" in given[0]):
        if toml:
            raise UsageError("--toml: not with KEY=VALUE", "llumctl set --toml")
        flags = Flags(cluster, dry_run, True, reason, if_revision, output_format)
        _change(given, flags, config, save=save)
        return
    changing = {"--save": save, "--dry-run": dry_run, "--reason": reason}
    changing |= {"--if-revision": if_revision is not None}
    for flag, value in changing.items():
        if value:
            raise UsageError(f"{flag}: only with KEY=VALUE", f"{HINT} {flag}")
    _show(given[0] if given else None, output_format, cluster, config, toml=toml)


def _show(
    key: str | None, output_format: Format, cluster: str | None, config: Path | None, *, toml: bool
) -> None:
    if key is not None:
        arguments.an_id(key, "KEY")
    if toml and output_format is not Format.TABLE:
        raise UsageError("--toml: not with --output", "llumctl set --toml")
    if config is not None:
        config_file.find(config)  # a wrong file is reported even without a cluster
        if not toml:
            raise UsageError("--config: only with --toml or --save", "llumctl set --toml")
    name = connect.attached(cluster)
    with connect.client(name) as client:
        found = client.settings()
        levels = client.status().levels if toml else ()
    if key is not None:
        found = _only(found, key)
    if toml:
        _emit_toml(found, levels, config, name)
        return
    output.emit(_listed(found, output_format))
    if output_format in (Format.TABLE, Format.WIDE):
        output.say(f"revision {found.revision}")


def _only(found: "SettingList", key: str) -> "SettingList":
    """The setting of this key or, if the key names a table or a priority level, all settings below
    it. Raises UsageError if there is none."""
    below = f"{key.rstrip('.')}."
    only = tuple(each for each in found.settings if f"{each.key}.".startswith(below))
    if not only:
        keys = [each.key.split(".") for each in found.settings]
        known = {".".join(key[:end]): None for key in keys for end in range(1, len(key) + 1)}
        raise UsageError(
            f"KEY: {key[:60]!r} is not a setting of a running cluster"
            f"{arguments.nearest(key, known)}",
            "llumctl set",
        )
    return found.model_copy(update={"settings": only})


def _emit_toml(
    found: "SettingList", levels: "Sequence[LevelStatus]", flag: Path | None, cluster: str
) -> None:
    path, file = _file_in_force(flag, connect.running(cluster))
    values = {setting.key: setting.value for setting in found.settings}
    changed = differing(values, file)
    against = f"{path}" if file is not None else "the defaults (there is no configuration file)"
    if changed:
        output.emit(_as_toml(changed, levels))
        output.say(f"these differ from {against}")
    else:
        output.say(f"nothing differs from {against}")


def _as_toml(values: "Mapping[str, SettingValue]", levels: "Sequence[LevelStatus]") -> str:
    """Settings as lines of a configuration file. A file has all priority levels or none, so if one
    differs, all are written."""
    from controller.api.settings.settings import MODEL_TABLES

    tables: dict[str, list[str]] = {}
    for key, value in values.items():
        table, *_, name = key.split(".")
        if meant.model() and table in MODEL_TABLES:
            table = f"models.{toml_text.key(meant.model())}.{table}"
        line = (
            f"# {name} has no value" if value is None else f"{name} = {toml_text.value_text(value)}"
        )
        tables.setdefault(table, []).append(line)
    blocks = [
        "\n".join([f"[{table}]", *lines]) for table, lines in tables.items() if table != "priority"
    ]
    if "priority" in tables:
        blocks += [_level(level) for level in levels]
    return "\n\n".join(blocks)


def _level(level: "LevelStatus") -> str:
    lines = ["[[priority]]", f"name = {toml_text.value_text(level.name)}", f"rank = {level.rank}"]
    for name in ("target_load_tokens", "target_ttft_s", "target_tpot_s"):
        if (target := getattr(level, name)) is not None:
            lines.append(f"{name} = {target}")
    if level.when_late != "serve":
        lines.append(f"when_late = {toml_text.value_text(level.when_late)}")
    return "\n".join(lines)


def _listed(found: "SettingList", output_format: Format) -> str:
    if output_format is Format.NAME:
        return "\n".join(setting.key for setting in found.settings)
    if output_format in (Format.TABLE, Format.WIDE):
        wide = output_format is Format.WIDE
        rows = [_row(setting, wide) for setting in found.settings]
        more = ("FROM", "ALLOWED") if wide else ()
        header = ("KEY", "VALUE", "DEFAULT", *more, "MEANING")
        return output.table(header, rows, ends_in_prose=True)
    return output.encode(output_format, found, found.settings)


def _row(setting: "Setting", wide: bool) -> tuple[str, ...]:
    value, default = setting_value(setting.value), setting_value(setting.default)
    more = (setting.origin or "-", setting.allowed or "-") if wide else ()
    return setting.key, value, default, *more, setting.meaning


def _change(assignments: list[str], flags: Flags, config: Path | None, *, save: bool) -> None:
    changes = parse(assignments)
    if config is not None:
        config_file.find(config)  # a wrong file is reported even without a cluster
        if not save:
            raise UsageError("--config: only with --toml or --save", f"{HINT} --save")
    if save and meant.model():
        raise UsageError(
            f"--save: not with --model; write it into [models.{meant.model()}] of the file",
            "llumctl config path",
        )
    name = connect.attached(flags.cluster)
    with connect.client(name) as client:
        from controller.api.operations.on_cluster import SetSettings, SettingsPatch

        patch = SettingsPatch(
            changes=changes,
            dry_run=flags.dry_run,
            reason=flags.reason,
            if_revision=flags.if_revision,
        )
        orders = _of_models(client, SetSettings(patch), flags)
        # If the changes cannot be saved, that must be found out before anything has changed.
        saving = _saving(client, orders, config, name) if save else None
        with arguments.about("KEY=VALUE"):
            reports = _sent(client, orders)
    for order, found in zip(orders, reports, strict=True):
        _tell_change(order.model, found, flags)
    changed = any(found.changes for found in reports)
    saves = saving is not None and saving.changes
    if saving is not None and saves:
        _save(saving, changed=changed, dry_run=flags.dry_run)
    if not changed and not saves:
        output.say("nothing to change")
    elif flags.dry_run:
        raise typer.Exit(EXIT_WOULD_CHANGE)


def _of_models(client: "ControlClient", order: "SetSettings", flags: Flags) -> "list[SetSettings]":
    """The order; if the cluster serves several models and none was named, one for the settings that
    all share, and one for each model."""
    models = client.status().models
    if not models:
        return [order]
    from controller.api.settings.setting_values import is_shared

    changes = order.wanted.changes
    shared = {key: value for key, value in changes.items() if is_shared(key)}
    own = {key: value for key, value in changes.items() if key not in shared}
    found = [order.but(changes=shared)] if shared else []
    if not own:
        return found
    if flags.output_format not in (Format.TABLE, Format.WIDE):
        raise UsageError(
            f"-o {flags.output_format}: is about one model, and the cluster serves"
            f" {', '.join(each.name for each in models)}",
            f"the same command with --model {models[0].name}",
        )
    return [*found, *(order.but(changes=own).on(each.name) for each in models)]


def _sent(client: "ControlClient", orders: "Sequence[SetSettings]") -> "list[SettingChanges]":
    """Gives the orders, the first one at the revision of the dry runs and each at that of the one
    before: a value that is refused changes none."""
    if len(orders) > 1 and not orders[0].wanted.dry_run:
        plans = [client.send(each.dry()) for each in orders]
        orders = [each.at(plans[0].revision) for each in orders]
    found: list[SettingChanges] = []
    for each in orders:
        try:
            found.append(client.send(each.at(found[-1].revision) if found else each))
        except LlumctlError as error:
            done = ", ".join(done.model or "all models" for done in orders[: len(found)])
            error.message += f"; {done} changed before" if done else ""
            raise
    return found


def _tell_change(model: str, found: "SettingChanges", flags: Flags) -> None:
    from controller.api.operations.on_cluster import preview

    if shown := changes_text(found, flags.output_format):
        output.emit(f"{printable(model)}:\n{shown}" if model else shown)
    if flags.output_format in (Format.TABLE, Format.WIDE):
        for line in preview(found):
            output.say(line)
    if found.changes and not flags.dry_run:
        output.say(f"{model}: revision {found.revision}" if model else f"revision {found.revision}")


def parse(texts: Iterable[str]) -> "dict[str, SettingValue]":
    """Reads texts of the form `KEY=VALUE`. The controller decides later whether there are such keys
    and values. Raises UsageError for a text of any other form, and for a key that is given
    twice."""
    found = config_file.parse_assignments(texts, "KEY=VALUE", HINT)
    from controller.api.settings.setting_values import value_of

    return {key: value_of(key, text) for key, text in found.items()}


def _saving(
    client: "ControlClient", orders: "Sequence[SetSettings]", config: Path | None, cluster: str
) -> "Saving":
    """Plans the new text of the configuration file, with the values as the controller read them."""
    with arguments.about("KEY=VALUE"):
        plans = [client.send(each.dry()) for each in orders]
    any_model = next(iter(client.status().models), None)
    known = client.of_model(any_model.name if any_model else "").settings()
    values = {each.key: each.value for each in known.settings}
    values |= {each.key: each.value for plan in plans for each in plan.changes}
    wanted = {key: values[key] for order in orders for key in order.wanted.changes}
    for variable in overriding(list(wanted)):
        output.say(
            f"{variable} is set here, and overrides the configuration file at the next start"
        )
    return planned(_file_in_force(config, connect.running(cluster))[0], wanted)


def _save(saving: "Saving", *, changed: bool, dry_run: bool) -> None:
    if not dry_run:
        try:
            saving.write()
        except LlumctlError as error:
            kept = "the running cluster was changed, but " if changed else ""
            raise LlumctlError(f"{kept}{error.message}", error.hint) from error
    output.say(f"{'would be saved' if dry_run else 'saved'} in {saving.path}:")
    for line in saving.lines:
        output.say(line)


def changes_text(found: "SettingChanges", output_format: Format) -> str:
    if output_format is Format.NAME:
        return "\n".join(change.key for change in found.changes)
    if output_format in (Format.TABLE, Format.WIDE):
        if not found.changes:
            return ""
        of = setting_value
        rows = [(each.key, of(each.previous), of(each.value)) for each in found.changes]
        header = ("KEY", "PREVIOUS", "NOW" if not found.dry_run else "WOULD-BE")
        return output.table(header, rows)
    return output.encode(output_format, found, found.changes)


# -- --save: writes the changes into the configuration file, and leaves the rest as it is ----

OF_THE_CLUSTER = "the cluster was started with it"
NO_HINT = "llumctl set --toml"


def _file_in_force(
    flag: Path | None, state: "RunState"
) -> tuple[Path, config_file.ConfigFile | None]:
    """The configuration file in force: the file of `--config`, else the one that the cluster was
    started with, else the one that `up` would read now. The second value is None if that file does
    not exist.

    Raises UsageError if a file that was named does not exist, or if the file does not parse."""
    started_with = Path(state.config_file) if state.config_file else None
    if flag is None and started_with is not None:
        return started_with, config_file.read(started_with, OF_THE_CLUSTER)
    return config_file.locate(flag)[1], config_file.find(flag)


def differing(
    in_force: "Mapping[str, SettingValue]", file: ConfigFile | None
) -> "dict[str, SettingValue]":
    """Live settings whose value differs from the file's; values from flags and variables are not
    compared. Raises UsageError for a file that `up` would refuse."""
    from controller.api.settings.setting_values import live_settings
    from controller.api.settings.settings import Settings
    from llumctl.config import settings

    written = Settings() if file is None else settings.of_file(file)
    if meant.model() in written.models:
        written = written.of_model(meant.model())
    of_file = live_settings(written)
    return {
        key: value
        for key, value in in_force.items()
        if key not in of_file or of_file[key].value != value
    }


def overriding(keys: Sequence[str]) -> list[str]:
    """Environment variables that set one of these keys, and so override the file."""
    from llumctl.config import settings

    names = [f"{settings.PREFIX}{key.replace('.', '_').upper()}" for key in keys]
    return [name for name in names if os.environ.get(name)]


@dataclass(frozen=True, slots=True)
class Saving:
    """A planned change of a file: its text before and after."""

    path: Path
    before: bytes
    after: bytes

    @property
    def changes(self) -> bool:
        return self.before != self.after

    @property
    def lines(self) -> list[str]:
        """Removed lines, which begin with -, and added lines, which begin with +."""
        texts = (self.before.decode().splitlines(), self.after.decode().splitlines())
        found = difflib.unified_diff(*texts, lineterm="", n=0)
        return [line for line in list(found)[2:] if not line.startswith("@@")]

    def write(self) -> None:
        """Replaces the file atomically and keeps its mode. If it raises LlumctlError, the file is
        unchanged."""
        if not self.changes:
            return
        try:
            raw, status = user_files.read_with_status(self.path, config_file.MAX_BYTES)
            if raw != self.before:
                raise OSError(0, "somebody has changed it meanwhile")
            user_files.replace(self.path, self.after.decode(), stat.S_IMODE(status.st_mode))
        except OSError as error:
            raise LlumctlError(
                f"{self.path} was not written: {error.strerror}", "llumctl set --toml"
            ) from error


def planned(path: Path, values: "Mapping[str, SettingValue]") -> Saving:
    """Plans the change. Raises UsageError if there is no such file or it does not parse, and
    RefusedError if it cannot be written, or not without changing other keys."""
    try:
        file = config_file.read(path, "--save writes into it")
    except config_file.AbsentError as error:
        raise UsageError(
            f"{path}: there is no configuration file to save in",
            f"mkdir -p {path.parent} && touch {path}",
        ) from error
    target = path.resolve()  # a link stays one
    _check_writable(target)
    _check_no_model_differs(file, values)
    text = file.text
    for key, value in values.items():
        try:
            text = _edited(text, key, value)
        except toml_text.CannotEditError as error:
            raise RefusedError(
                f"{path}:{error.line}: {error}", config_file.edit_command(path, error.line)
            ) from error
    mark = (
        codecs.BOM_UTF8
        if user_files.read(target, config_file.MAX_BYTES).startswith(codecs.BOM_UTF8)
        else b""
    )
    return Saving(target, mark + file.text.encode(), mark + text.encode())


def _check_no_model_differs(
    file: config_file.ConfigFile, values: "Mapping[str, SettingValue]"
) -> None:
    """Raises RefusedError if the file has another value of a setting for one of its models, which
    would count for that model at the next start."""
    models = file.tables.get("models")
    for name, table in models.items() if isinstance(models, dict) else ():
        own = _by_key(table)
        for key in [key for key in values if key in own and own[key] != values[key]]:
            line = file.line(("models", name, *key.split(".")))
            raise RefusedError(
                f"{file.path}:{line}: [models.{name}] has a {key} of its own, which would count for"
                f" {name} at the next start; remove it or change it there",
                config_file.edit_command(file.path, line),
            )


def _by_key(table: object) -> dict[str, object]:
    """The settings in a table of the file, each by its key `TABLE.NAME`."""
    tables = table.items() if isinstance(table, dict) else ()
    return {
        f"{of}.{name}": value
        for of, each in tables
        if isinstance(each, dict)
        for name, value in each.items()
    }


def _edited(text: str, key: str, value: "SettingValue") -> str:
    table, *level, name = key.split(".")
    if not level:
        return toml_text.set_value(text, (table,), name, value)
    levels = tomllib.loads(text).get(table)
    if levels is None:  # a file has all levels or none, so all defaults are written
        from controller.api.settings.settings import Settings

        levels = (level.model_dump(exclude_defaults=True) for level in Settings().priority)
        defaults = [list(level.items()) for level in levels]
        text = toml_text.with_tables(text, table, defaults)
        levels = tomllib.loads(text)[table]
    found = [n for n, each in enumerate(levels) if each.get("name") == level[0]]
    if not found:
        raise toml_text.CannotEditError(1, f"it has no priority level {level[0]!r}")
    return toml_text.set_value(text, (table, found[0]), name, value)


def _check_writable(path: Path) -> None:
    try:
        found = path.stat()
    except OSError as error:
        raise RefusedError(f"{path} cannot be written: {error.strerror}", NO_HINT) from error
    why = ""
    if not stat.S_ISREG(found.st_mode):
        why = "it is no regular file"
    elif found.st_uid != os.geteuid():
        why = f"it belongs to another user (uid {found.st_uid})"
    elif not os.access(path, os.W_OK):
        why = "it is write-protected"
    elif not os.access(path.parent, os.W_OK | os.X_OK):
        why = f"the folder {path.parent} is write-protected"
    if why:
        raise RefusedError(f"{path} cannot be written: {why}", NO_HINT)
