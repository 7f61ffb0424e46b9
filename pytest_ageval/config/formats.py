"""The document formats as types: what each file may hold. Derived from them: docs/schemas.

Rules that a type cannot say (an artifact that an input names must be declared, say) are checked by
the module that turns a document into what the engine uses: `tasks`, `profiles`, `agents`.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta, Struct

DATASET_FORMAT = "ageval.dataset/1"
TASK_FORMAT = "ageval.task/1"
PROFILES_FORMAT = "ageval.profiles/1"
AGENT_FORMAT = "ageval.agent/1"
PLUGIN_FORMAT = "ageval.plugin/1"
PRICES_FORMAT = "ageval.prices/1"
MATRIX_FORMAT = "ageval.matrix/1"
KNOWN_FAILURES_FORMAT = "ageval.known-failures/1"

Text = Annotated[str, Meta(min_length=1)]
# Three decades: larger figures are typing errors, and overflow the clocks of the platform.
Seconds = Annotated[int, Meta(ge=0, le=1_000_000_000)]
Positive = Annotated[int, Meta(ge=1)]
Dollars = Annotated[float, Meta(ge=0, le=1_000_000)]
PositiveNumber = Annotated[float, Meta(gt=0, le=1_000_000_000)]


class Upstream(Struct, forbid_unknown_fields=True, omit_defaults=True):
    """Where a ported task comes from."""

    name: Text | None = None
    url: Text | None = None
    ref: Text | None = None
    commit: Text | None = None
    task_id: Text | None = None
    paper: Text | None = None


class Parity(Struct, forbid_unknown_fields=True, omit_defaults=True):
    """What a port keeps, and what it does not."""

    claims: list[str] | None = None
    known_gaps: list[str] | None = None


class Provenance(Struct, forbid_unknown_fields=True, omit_defaults=True):
    """Where a task or a data set comes from."""

    kind: Literal["port", "reimplementation", "wrapper", "original"]
    upstream: Upstream | None = None
    parity: Parity | None = None


class TasksTable(Struct, forbid_unknown_fields=True):
    """``tasks`` of ageval.yaml."""

    root: Text = "tasks"


class Defaults(Struct, forbid_unknown_fields=True):
    """``defaults`` of ageval.yaml."""

    max_concurrent_tasks: Positive | None = None


class Asset(Struct, forbid_unknown_fields=True):
    """A large file that the data set names by its digest and does not ship."""

    path: Text
    url: Annotated[str, Meta(pattern=r"^(https?|file)://")]
    sha256: Annotated[str, Meta(pattern=r"^[0-9a-f]{64}$")]


class DatasetFile(Struct, forbid_unknown_fields=True):
    """``ageval.yaml``."""

    format: Literal["ageval.dataset/1"]
    dataset_id: Annotated[str, Meta(max_length=128, pattern=r"^[a-z0-9](?:[a-z0-9._/-]*[a-z0-9])?$")]
    version: Annotated[str, Meta(pattern=r"\S")]
    tasks: TasksTable | None = None
    description: str | None = None
    defaults: Defaults | None = None
    provenance: Provenance | None = None
    assets: list[Asset] | None = None
    prepare: Text | None = None


class McpServerRow(Struct, forbid_unknown_fields=True, omit_defaults=True):
    """A server of the Model Context Protocol: ``command`` (stdio), or ``url`` (http, or sse)."""

    name: Annotated[str, Meta(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]{0,63}$")]
    transport: Literal["stdio", "http", "streamable-http", "sse"] | None = None
    command: Text | None = None
    args: list[str] | None = None
    env: dict[Text, str] | None = None
    url: Annotated[str, Meta(pattern=r"^https?://")] | None = None
    headers: dict[Text, str] | None = None


class HomeFileRow(Struct, forbid_unknown_fields=True):
    """One row of ``files`` of ``home-files``."""

    src: Text
    dest: Text
    dest_root: Literal["home", "workspace"] = "home"


class HomeFiles(Struct, forbid_unknown_fields=True):
    """The options of ``home-files``: what is copied into the box."""

    files: Annotated[list[HomeFileRow], Meta(min_length=1)]


class SkillRow(Struct, forbid_unknown_fields=True):
    """One row of ``skills`` of ``agent-skills``: a directory with a SKILL.md."""

    src: Text


class AgentSkills(Struct, forbid_unknown_fields=True):
    """The options of ``agent-skills``: skills, and files with instructions."""

    skills: list[SkillRow] | None = None
    instructions: Text | list[Text] | None = None
    dest_roots: Annotated[list[Text], Meta(min_length=1)] | None = None


class RoleSlot(Struct, forbid_unknown_fields=True):
    """A role that the task needs an agent for."""

    id: Annotated[str, Meta(pattern=r"^[A-Za-z_][A-Za-z0-9_-]*$")]
    description: str | None = None


class Requires(Struct, forbid_unknown_fields=True):
    """What the task needs of its box."""

    environment: list[str] | None = None


class LimitsTable(Struct, forbid_unknown_fields=True, omit_defaults=True):
    """``limits``: a whole number such as 360.0 counts as an integer."""

    wall_time_seconds: Seconds | None = None
    environment_seconds: Seconds | None = None
    evaluate_seconds: Seconds | None = None
    agent_invocations: Annotated[int, Meta(ge=0, le=1_000_000_000)] | None = None
    agent_concurrency: Annotated[int, Meta(ge=1, le=100_000)] | None = None


class ArtifactRow(Struct, forbid_unknown_fields=True):
    """One row of ``artifacts.publishable``."""

    id: Text
    path: Text
    kind: Literal["file", "tree"] = "file"
    exclude: list[Text] | None = None


class Artifacts(Struct, forbid_unknown_fields=True):
    """What the run publishes."""

    publishable: list[ArtifactRow] | None = None


class InputRow(Struct, forbid_unknown_fields=True):
    """One row of ``evaluation.inputs``."""

    artifact: Text | None = None
    package_path: Text | None = None
    target: Text | None = None


class CollectRow(Struct, forbid_unknown_fields=True):
    """One row of ``evaluation.collect``."""

    path: Text | None = None
    service: Annotated[str, Meta(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]{0,62}$")] | None = None
    command: Annotated[str, Meta(pattern=r"\S")] | None = None
    timeout_sec: PositiveNumber = 60.0
    exclude: Annotated[list[Text], Meta(min_length=1)] | None = None


class ScoringRow(Struct, forbid_unknown_fields=True):
    """One named scoring box."""

    dockerfile: Text | None = None
    docker_image: Text | None = None
    context: Text | None = None


class EvaluationTable(Struct, forbid_unknown_fields=True):
    """How the verdict is found."""

    entrypoint: Annotated[str, Meta(pattern=r"^[A-Za-z_][A-Za-z0-9_.]*:[A-Za-z_][A-Za-z0-9_.]*$")] = (
        "evaluator:evaluate"
    )
    inputs: list[InputRow] | None = None
    docker_image: Text | None = None
    environments: (
        Annotated[
            dict[Annotated[str, Meta(pattern=r"^[a-z][a-z0-9_-]*$")], ScoringRow],
            Meta(min_length=1),
        ]
        | None
    ) = None
    collect: list[CollectRow] | None = None


class TaskFile(Struct, forbid_unknown_fields=True):
    """``task.yaml``."""

    format: Literal["ageval.task/1"]
    task_id: str
    description: str | None = None
    tags: list[Text] | None = None
    parameters: dict[str, Any] | None = None
    agent_profiles: list[RoleSlot] | None = None
    requires: Requires | None = None
    limits: LimitsTable | None = None
    artifacts: Artifacts | None = None
    evaluation: EvaluationTable | None = None
    provenance: Provenance | None = None
    mcp_servers: list[McpServerRow] | None = None
    skills: list[Text] | None = None
    instructions: Text | None = None


class Reasoning(Struct, forbid_unknown_fields=True, omit_defaults=True):
    """``model.reasoning``."""

    effort: Text | None = None


class ModelTable(Struct, forbid_unknown_fields=True, omit_defaults=True):
    """``model`` of a profile."""

    id: Annotated[str, Meta(pattern=r"\S")] | None = None
    api: Literal["chat", "responses"] | None = None
    reasoning: Reasoning | None = None
    timeout: PositiveNumber | None = None
    watchdog: PositiveNumber | None = None
    extra: dict[str, Any] | None = None


class ExtensionRow(Struct, forbid_unknown_fields=True, omit_defaults=True):
    """One row of ``extensions``: a plugin that takes part, and its options."""

    plugin: Text
    slot: Text | None = None
    slots: list[Text] | None = None
    priority: int | None = None
    options: dict[str, Any] | None = None


class ProfileRow(Struct, forbid_unknown_fields=True, omit_defaults=True):
    """One row of ``agent_profiles``: who plays a role."""

    executor: Text | None = None
    model: ModelTable | None = None
    options: dict[str, Any] | None = None
    api_key: Text | None = None
    base_url: Text | None = None
    extensions: list[ExtensionRow] | None = None
    label: Text | None = None
    agent_ref: Text | None = None
    overlays: list[Text] | None = None
    mcp_servers: list[McpServerRow] | None = None
    auth: Literal["env", "keyless", "keyless-remote"] | None = None


class EvaluateHost(Struct, forbid_unknown_fields=True, omit_defaults=True):
    """Where the evaluator's commands run."""

    isolated: bool | None = None
    environment_options: dict[str, Any] | None = None


class ProfilesFile(Struct, forbid_unknown_fields=True):
    """``profiles.yaml``."""

    format: Literal["ageval.profiles/1"]
    agent_profiles: dict[Annotated[str, Meta(pattern=r"^(?:\*|[A-Za-z_][A-Za-z0-9_-]*)$")], ProfileRow]
    environment: Annotated[str, Meta(pattern=r"\S")] = "docker"
    environment_options: dict[str, Any] | None = None
    evaluate_host: EvaluateHost | None = None


class AgentFile(Struct, forbid_unknown_fields=True):
    """``agent.yaml``."""

    format: Literal["ageval.agent/1"]
    agent_id: Annotated[
        str,
        Meta(max_length=128, pattern=r"^[a-z0-9][a-z0-9._-]*(?:/[a-z0-9][a-z0-9._-]*)?$"),
    ]
    version: Annotated[str, Meta(pattern=r"\S")]
    binding: ProfileRow
    label: str | None = None
    description: str | None = None
    tags: list[str] | None = None


#: ``module:attribute``, as an entry of a plugin is named.
Entry = Annotated[str, Meta(pattern=r"^[A-Za-z_][A-Za-z0-9_.]*:[A-Za-z_][A-Za-z0-9_.]*$")]


class SlotRow(Struct, forbid_unknown_fields=True):
    """An extension point that a plugin fills. A lower `priority` is asked first, and is further out."""

    id: Text
    entry: Entry
    priority: int = 100


class SlotsTable(Struct, forbid_unknown_fields=True):
    """``slots`` of a plugin."""

    exclusive: list[SlotRow] | None = None
    chain: list[SlotRow] | None = None


class ServiceRow(Struct, forbid_unknown_fields=True):
    """Something that other plugins may ask for by its name."""

    id: Text
    entry: Entry


class Exports(Struct, forbid_unknown_fields=True):
    """``exports`` of a plugin."""

    services: list[ServiceRow] | None = None


class InjectRow(Struct, forbid_unknown_fields=True):
    """A service that the plugin needs; of ``environment``, with which capabilities."""

    service: Text
    capabilities: list[Text] | None = None


class HostRequirement(Struct, forbid_unknown_fields=True, rename={"import_": "import"}):
    """A module that can be imported here, or a file of the plugin."""

    import_: Text | None = None
    file: Text | None = None
    hint: str | None = None


class PluginRequirement(Struct, forbid_unknown_fields=True):
    """Another plugin that must be there."""

    plugin_id: Text
    hint: str | None = None


class PluginConfig(Struct, forbid_unknown_fields=True):
    """``config`` of a plugin: a Dockerfile below its directory, whose FROM is the box's image."""

    image_layers: Text | None = None


class PluginFile(Struct, forbid_unknown_fields=True):
    """``plugin.yaml``."""

    format: Literal["ageval.plugin/1"]
    plugin_id: Annotated[
        str,
        Meta(max_length=128, pattern=r"^[a-z0-9][a-z0-9._-]*(?:/[a-z0-9][a-z0-9._-]*)?$"),
    ]
    version: Annotated[str, Meta(pattern=r"\S")]
    description: str | None = None
    slots: SlotsTable | None = None
    exports: Exports | None = None
    inject: list[InjectRow] | None = None
    host_requires: list[HostRequirement] | None = None
    plugin_requires: list[PluginRequirement] | None = None
    config: PluginConfig | None = None


class PriceRow(Struct, forbid_unknown_fields=True):
    """The price of the models whose id matches: US dollars for a million tokens."""

    match: Text
    input: Dollars
    output: Dollars
    cache_read: Dollars | None = None
    cache_write: Dollars | None = None


class PricesFile(Struct, forbid_unknown_fields=True):
    """A price table (``--ageval-prices``)."""

    format: Literal["ageval.prices/1"]
    date: Annotated[str, Meta(pattern=r"^\d{4}-\d{2}-\d{2}$")]
    models: Annotated[list[PriceRow], Meta(min_length=1)]
    source: Text | None = None


class MatrixRow(Struct, forbid_unknown_fields=True):
    """A row of ``include`` or ``exclude``. `set` is by pointer."""

    agent: Text | list[Text] | None = None
    model: Text | None = None
    effort: Text | None = None
    box: Text | None = None
    parameters: dict[Text, Any] | None = None
    set: dict[Text, Any] | None = None


_Names = Annotated[list[Text], Meta(min_length=1)]
_Values = Annotated[list[Any], Meta(min_length=1)]


class MatrixFile(Struct, forbid_unknown_fields=True):
    """What is combined (``--matrix FILE``)."""

    format: Literal["ageval.matrix/1"]
    agent: _Names | None = None
    model: _Names | None = None
    effort: _Names | None = None
    box: _Names | None = None
    parameters: dict[Text, _Values] | None = None
    set: dict[Text, _Values] | None = None
    include: list[MatrixRow] | None = None
    exclude: list[MatrixRow] | None = None


class KnownFailure(Struct, forbid_unknown_fields=True):
    """Attempts that are known to FAIL. The names are patterns with ``*``, ``?`` and ``[...]``."""

    task: Text
    reason: Text
    agent: Text = "*"
    model: Text = "*"
    box: Text = "*"
    strict: bool | None = None


class KnownFailuresFile(Struct, forbid_unknown_fields=True):
    """Known failures (``--known-failures``)."""

    format: Literal["ageval.known-failures/1"]
    known_failures: list[KnownFailure]


#: The type of each format.
FORMATS: dict[str, type[Struct]] = {
    DATASET_FORMAT: DatasetFile,
    TASK_FORMAT: TaskFile,
    PROFILES_FORMAT: ProfilesFile,
    AGENT_FORMAT: AgentFile,
    PLUGIN_FORMAT: PluginFile,
    PRICES_FORMAT: PricesFile,
    MATRIX_FORMAT: MatrixFile,
    KNOWN_FAILURES_FORMAT: KnownFailuresFile,
}


def plain(value: Any) -> Any:
    """A Struct (or a mapping or list of them) as plain data, without unset fields."""
    return msgspec.to_builtins(value)
