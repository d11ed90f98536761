# Copyright (c) 2026, the tenantry.gpu authors
# GNU General Public License v3.0+ (see https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""HAMi's wire formats: the cards a node declares, the shares a pod got, the lock of a node.

Every format has a parse and a format function; what format wrote, parse gives back.
No input or output, no clock. A text that cannot be read raises HamiFormatError, which names it.
Source of every format: HAMi 2.10, file named in the docstring.
"""

from __future__ import annotations

import json
import re
import uuid as uuidlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone

# Resources that a container asks for in its limits.
RESOURCE_COUNT = "nvidia.com/gpu"
RESOURCE_MEMORY = "nvidia.com/gpumem"
RESOURCE_MEMORY_PERCENT = "nvidia.com/gpumem-percentage"
RESOURCE_CORES = "nvidia.com/gpucores"
RESOURCE_PRIORITY = "nvidia.com/priority"

# Annotations of a node.
NODE_REGISTER = "hami.io/node-nvidia-register"
NODE_HANDSHAKE = "hami.io/node-handshake"
NODE_LOCK = "hami.io/mutex.lock"
NODE_CORDON = "hami.io/device-cordon"
NODE_PAIR_SCORES = "hami.io/node-nvidia-score"

# Annotations of a pod: what the scheduler decided (POD_NODE is a label too).
POD_NODE = "hami.io/vgpu-node"
POD_TIME = "hami.io/vgpu-time"
POD_TO_ALLOCATE = "hami.io/vgpu-devices-to-allocate"
POD_ALLOCATED = "hami.io/vgpu-devices-allocated"
POD_BIND_PHASE = "hami.io/bind-phase"
POD_BIND_TIME = "hami.io/bind-time"

# Annotations of a pod: what its user wants.
POD_NODE_POLICY = "hami.io/node-scheduler-policy"
POD_GPU_POLICY = "hami.io/gpu-scheduler-policy"
POD_SCORING_WEIGHTS = "hami.io/device-scoring-weights"
POD_USE_TYPE = "nvidia.com/use-gputype"
POD_NOUSE_TYPE = "nvidia.com/nouse-gputype"
POD_USE_UUID = "nvidia.com/use-gpuuuid"
POD_NOUSE_UUID = "nvidia.com/nouse-gpuuuid"
POD_NUMA_BIND = "nvidia.com/numa-bind"
POD_MODE = "nvidia.com/vgpu-mode"

PHASE_ALLOCATING = "allocating"
PHASE_SUCCESS = "success"
PHASE_FAILED = "failed"

LABEL_ROLE = "hami.io/scheduler-role"
ROLE_LEADER = "leader"
ROLE_FOLLOWER = "follower"

SCHEDULER_NAME = "hami-scheduler"
DEVICE_NVIDIA = "NVIDIA"
MODE_HAMI_CORE = "hami-core"
MODE_MIG = "mig"

_INT32_MAX = 2**31 - 1


class HamiFormatError(ValueError):
    """A text or a declaration that is not in HAMi's format; the message names it."""


@dataclass(frozen=True)
class Card:
    """A physical GPU as its node declares it.

    memory_mib in MiB, cores in percent of the card (100 is all of it),
    slots is the number of containers that may share it.
    """

    uuid: str
    index: int = 0
    slots: int = 10
    memory_mib: int = 0
    cores: int = 100
    type: str = ""
    numa: int = 0
    mode: str = MODE_HAMI_CORE
    healthy: bool = True


@dataclass(frozen=True)
class Share:
    """What one container gets of one card: memory in MiB, cores in percent of the card."""

    uuid: str
    type: str
    memory_mib: int
    cores: int


# The shares of a pod, a tuple for each container.
Allocation = tuple[tuple[Share, ...], ...]


@dataclass(frozen=True)
class Lock:
    """Who holds a node while its cards are handed out. The old format names no pod: both are empty."""

    taken_at: datetime
    namespace: str = ""
    pod: str = ""


def _shorten(text: str, limit: int = 120) -> str:
    return repr(text if len(text) <= limit else text[:limit] + "...")


# Few digits, since int() refuses thousands of them with an error of its own.
_INTEGER = re.compile(r"-?0*[0-9]{1,10}")


def _integer(text: str, what: str, whole: str, minimum: int = 0) -> int:
    if not _INTEGER.fullmatch(text) or not minimum <= int(text) <= _INT32_MAX:
        raise HamiFormatError(
            f"{what} {_shorten(text)} in {_shorten(whole)} is no number from {minimum} to {_INT32_MAX}"
        )
    return int(text)


def _json_list(text: str, what: str) -> list[object]:
    try:
        entries = json.loads(text)
    except RecursionError as error:
        raise HamiFormatError(f"{what} {_shorten(text)} is nested too deeply") from error
    except ValueError as error:
        raise HamiFormatError(f"{what} {_shorten(text)} is not JSON: {error}") from error
    if not isinstance(entries, list):
        raise HamiFormatError(f"{what} {_shorten(text)} is no JSON list")
    return entries


def _named(value: object) -> str:
    """A value of JSON for a message, without what is nested in it."""
    if isinstance(value, (list, dict)):
        return "a list" if isinstance(value, list) else "an object"
    if isinstance(value, int) and value.bit_length() > 64:
        return f"a number of {value.bit_length()} bits"
    return _shorten(value) if isinstance(value, str) else json.dumps(value, default=repr)


# Half a pair: JSON can write it, and nobody can send it on.
_SURROGATE = re.compile("[\ud800-\udfff]")


# --- the cards of a node -----------------------------------------------------------------

# name in JSON, attribute of Card, type; in the order in which HAMi writes them
_REGISTER_FIELDS = (
    ("id", "uuid", str),
    ("index", "index", int),
    ("count", "slots", int),
    ("devmem", "memory_mib", int),
    ("devcore", "cores", int),
    ("type", "type", str),
    ("numa", "numa", int),
    ("mode", "mode", str),
    ("health", "healthy", bool),
)


def parse_register(text: str) -> list[Card]:
    """Read a node's hami.io/node-nvidia-register: JSON (HAMi 2.8 and later) or colons (2.6, 2.7).

    In JSON a missing field is zero (a missing health is false) and unknown ones are left out,
    as in UnMarshalNodeDevices and DecodeNodeDevices, HAMi 2.10 pkg/device/devices.go.
    """
    stripped = text.strip()
    cards = _parse_register_json(stripped) if stripped.startswith("[") else _parse_register_colons(stripped)
    seen: set[str] = set()
    for card in cards:
        if card.uuid in seen:
            raise HamiFormatError(f"card {card.uuid!r} stands twice in register {_shorten(text)}")
        seen.add(card.uuid)
    return cards


def _parse_register_json(text: str) -> list[Card]:
    return [_card_from_json(entry, text) for entry in _json_list(text, "register")]


def _card_from_json(entry: object, whole: str) -> Card:
    if not isinstance(entry, dict):
        raise HamiFormatError(f"{_named(entry)} in register {_shorten(whole)} is no card")
    card = f"of card {_named(entry.get('id'))} in register {_shorten(whole)}"
    values: dict[str, object] = {}
    for name, attribute, kind in _REGISTER_FIELDS:
        value = entry.get(name)
        if value is None:
            value = kind()
        elif type(value) is not kind:  # pylint: disable=unidiomatic-typecheck  # True is an int
            raise HamiFormatError(f"{name} {_named(value)} {card} is no {kind.__name__}")
        if isinstance(value, int) and not (-1 if name == "numa" else 0) <= value <= _INT32_MAX:
            raise HamiFormatError(f"{name} {_named(value)} {card} is out of range")
        if isinstance(value, str) and _SURROGATE.search(value):
            raise HamiFormatError(f"{name} {_named(value)} {card} is no text")
        values[attribute] = value
    if not values["uuid"]:
        raise HamiFormatError(f"a card in register {_shorten(whole)} has no id")
    return Card(**values)  # type: ignore[arg-type]


def _parse_register_colons(text: str) -> list[Card]:
    if not text.endswith(":"):
        raise HamiFormatError(f"register {_shorten(text)} is neither a JSON list nor ends with a colon")
    return [_card_from_colons(part, text) for part in text[:-1].split(":")]


def _card_from_colons(part: str, whole: str) -> Card:
    fields = part.split(",")
    if len(fields) not in (7, 9) or not fields[0]:
        raise HamiFormatError(f"card {_shorten(part)} in register {_shorten(whole)} has not 7 or 9 fields with an id")
    if fields[6] not in ("true", "false"):
        raise HamiFormatError(f"health {_shorten(fields[6])} of card {_shorten(part)} is neither true nor false")
    return Card(
        uuid=fields[0],
        slots=_integer(fields[1], "count", part),
        memory_mib=_integer(fields[2], "memory", part),
        cores=_integer(fields[3], "cores", part),
        type=fields[4],
        numa=_integer(fields[5], "numa", part, minimum=-1),
        healthy=fields[6] == "true",
        index=_integer(fields[7], "index", part) if len(fields) == 9 else 0,
        mode=fields[8] if len(fields) == 9 else MODE_HAMI_CORE,
    )


def format_register(cards: Iterable[Card], colons: bool = False) -> str:
    """Write cards as hami.io/node-nvidia-register, byte for byte as HAMi does.

    JSON leaves zeros out (MarshalNodeDevices, HAMi 2.10 pkg/device/devices.go);
    with colons the format of 2.6 and 2.7 (EncodeNodeDevices).
    """
    if colons:
        return "".join(_card_to_colons(card) for card in cards)
    entries = []
    for card in cards:
        values = ((name, getattr(card, attribute)) for name, attribute, _kind in _REGISTER_FIELDS)
        entries.append({name: value for name, value in values if value})
    return json.dumps(entries, separators=(",", ":"), ensure_ascii=False)


def _card_to_colons(card: Card) -> str:
    for text in (card.uuid, card.type, card.mode):
        if "," in text or ":" in text:
            raise HamiFormatError(
                f"{text!r} of card {card.uuid!r} cannot be written with colons: it has a separator in it"
            )
    fields = (
        card.uuid,
        card.slots,
        card.memory_mib,
        card.cores,
        card.type,
        card.numa,
        str(card.healthy).lower(),
        card.index,
        card.mode,
    )
    return ",".join(str(field) for field in fields) + ":"


def uses_colons(register: str) -> bool:
    """Whether a register is in the format of 2.6 and 2.7."""
    return not register.lstrip().startswith("[")


def is_nvidia(card: Card) -> bool:
    """Whether HAMi takes a card for one of NVIDIA's: its type says so.

    getNodeResources, HAMi 2.10 pkg/scheduler/score.go.
    """
    return DEVICE_NVIDIA.lower() in card.type.lower()


def replace_cards(register: str, cards: Iterable[Card], colons: bool = False) -> str:
    """A register with these NVIDIA cards in place of its own; other vendors' entries stay as they are.

    An empty register, given or returned, is none. Raises HamiFormatError.
    """
    others = [card for card in parse_register(register) if not is_nvidia(card)] if register else []
    wanted = list(cards)
    if not wanted and not others:
        return ""
    text = format_register([*wanted, *others], colons)
    if not others or colons or uses_colons(register):
        return text
    # Their entries may have fields that we do not know.
    kept = {card.uuid for card in others}
    raw = [entry for entry in json.loads(register) if entry["id"] in kept]
    return json.dumps([*json.loads(text)[: len(wanted)], *raw], separators=(",", ":"), ensure_ascii=False)


def parse_cordon(text: str) -> frozenset[str]:
    """Read hami.io/device-cordon: UUIDs with commas; spaces and empty entries do not count.

    cordonedDevices, HAMi 2.10 pkg/device/nvidia/device.go.
    """
    return frozenset(part.strip() for part in text.split(",") if part.strip())


def format_cordon(uuids: Iterable[str]) -> str:
    """Write hami.io/device-cordon, sorted, so that equal sets give equal texts."""
    return ",".join(sorted(uuids))


def parse_pair_scores(text: str) -> dict[str, dict[str, int]]:
    """Read hami.io/node-nvidia-score: how well each card is linked to each other one.

    DecodePairScores, HAMi 2.10 pkg/device/devices.go.
    """
    scores: dict[str, dict[str, int]] = {}
    for entry in _json_list(text, "pair scores"):
        if not isinstance(entry, dict) or not isinstance(entry.get("uuid"), str):
            raise HamiFormatError(f"{_named(entry)} in pair scores {_shorten(text)} is no card with a uuid")
        linked = entry.get("score") or {}
        if not isinstance(linked, dict):
            raise HamiFormatError(f"score {_named(linked)} in pair scores {_shorten(text)} is no object")
        for other, score in linked.items():
            if type(score) is not int:  # pylint: disable=unidiomatic-typecheck  # True is an int
                raise HamiFormatError(f"score {_named(score)} of {other!r} in pair scores {_shorten(text)} is no int")
        scores[entry["uuid"]] = linked
    return scores


@dataclass(frozen=True)
class Handshake:
    """Where scheduler and plugin of a node are in telling each other that they live.

    state is requesting (the scheduler asked; the only one since 2.8), reported (the plugin answered) or
    deleted (it did not). ``at`` is without time zone, as it is written: the clock is its writer's.
    """

    state: str
    at: datetime


_HANDSHAKE = re.compile(
    r"(Requesting_|Reported |Deleted_)([0-9]{4})([-.])([0-9]{2})\3([0-9]{2} [0-9:]{8})(.*)", re.DOTALL
)


def parse_handshake(text: str) -> Handshake:
    """Read hami.io/node-handshake: Requesting_2026-06-14 15:05:03, or what 2.7 and older write too.

    CheckHealth, HAMi 2.10 pkg/device/devices.go; RegistrInAnnotation, HAMi 2.6
    pkg/device-plugin/nvidiadevice/nvinternal/plugin/register.go.
    """
    match = _HANDSHAKE.fullmatch(text)
    try:
        if match is None:
            raise ValueError("it has another form")
        at = datetime.strptime(f"{match[2]}-{match[4]}-{match[5]}", "%Y-%m-%d %H:%M:%S")
    except ValueError as error:
        raise HamiFormatError(
            f"handshake {_shorten(text)} is not like Requesting_2026-06-14 15:05:03: {error}"
        ) from error
    return Handshake(match[1].rstrip("_ ").lower(), at)


def older_than_2_6(annotations: Mapping[str, str]) -> str:
    """What in a node's annotations only a HAMi before 2.6 writes; empty if nothing.

    Up to 2.2 keys began with 4pd.io (pkg/util/types.go); up to 2.4 the handshake's date had dots and a
    card seven fields (CheckHealth in pkg/scheduler/scheduler.go, EncodeNodeDevices in pkg/util/util.go).
    What 2.5 writes is what 2.6 writes.
    """
    old_key = next((key for key in sorted(annotations) if key.startswith("4pd.io/")), "")
    if old_key:
        return f"annotation {old_key}"
    if re.match(r"(Requesting|Deleted)_[0-9]{4}\.", annotations.get(NODE_HANDSHAKE, "")):
        return f"handshake {_shorten(annotations[NODE_HANDSHAKE])}"
    register = annotations.get(NODE_REGISTER, "").strip()
    if not register.startswith("[") and any(card.count(",") == 6 for card in register.split(":")):
        return f"register {_shorten(register)} with seven fields a card"
    return ""


def format_handshake(at: datetime) -> str:
    """Write what the scheduler stamps into hami.io/node-handshake: Requesting_2026-06-14 15:05:03.

    CheckHealth, HAMi 2.10 pkg/device/devices.go.
    """
    return f"Requesting_{at:%Y-%m-%d %H:%M:%S}"


# --- the shares of a pod -----------------------------------------------------------------


def parse_allocation(text: str) -> Allocation:
    """Read hami.io/vgpu-devices-allocated or -to-allocate: UUID,type,memory,cores: a share, ; a container.

    DecodePodDevices, HAMi 2.10 pkg/device/devices.go; unlike it this one takes no loose ends.
    An empty text is no container, a lone ; one container without shares.
    """
    if not text:
        return ()
    if not text.endswith(";"):
        raise HamiFormatError(f"allocation {_shorten(text)} does not end with a semicolon")
    return tuple(_parse_container(part, text) for part in text[:-1].split(";"))


def _parse_container(part: str, whole: str) -> tuple[Share, ...]:
    if not part:
        return ()
    if not part.endswith(":"):
        raise HamiFormatError(f"container {_shorten(part)} in allocation {_shorten(whole)} does not end with a colon")
    return tuple(_parse_share(share, whole) for share in part[:-1].split(":"))


def _parse_share(part: str, whole: str) -> Share:
    fields = part.split(",")
    if len(fields) != 4 or not fields[0]:
        raise HamiFormatError(f"share {_shorten(part)} in allocation {_shorten(whole)} is not UUID,type,memory,cores")
    return Share(fields[0], fields[1], _integer(fields[2], "memory", part), _integer(fields[3], "cores", part))


def format_allocation(allocation: Allocation) -> str:
    """Write an allocation as EncodePodSingleDevice does, HAMi 2.10 pkg/device/devices.go."""
    return "".join("".join(_format_share(share) for share in container) + ";" for container in allocation)


def _format_share(share: Share) -> str:
    for text in (share.uuid, share.type):
        if re.search("[,:;]", text):
            raise HamiFormatError(f"{text!r} of share {share.uuid!r} has a separator in it")
    return f"{share.uuid},{share.type},{share.memory_mib},{share.cores}:"


# --- the lock of a node ------------------------------------------------------------------

_RFC3339 = re.compile(r"([0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9:]{8})(\.[0-9]+)?(Z|[+-][0-9]{2}:[0-9]{2})")


def parse_lock(text: str) -> Lock:
    """Read hami.io/mutex.lock: time,namespace,pod, or the time alone as old versions wrote it.

    ParseNodeLock, HAMi 2.10 pkg/util/nodelock/nodelock.go.
    """
    fields = text.split(",")
    if len(fields) not in (1, 3):
        raise HamiFormatError(f"lock {_shorten(text)} is not time,namespace,pod")
    match = _RFC3339.fullmatch(fields[0])
    if match is None:
        raise HamiFormatError(f"lock {_shorten(text)} does not begin with a time such as 2026-06-14T15:05:03Z")
    try:
        taken_at = datetime.fromisoformat(match[1] + match[3].replace("Z", "+00:00"))
    except ValueError as error:
        raise HamiFormatError(f"lock {_shorten(text)} has no such time: {error}") from error
    return Lock(taken_at, *fields[1:])


def format_lock(lock: Lock) -> str:
    """Write a lock; its time in whole seconds, which is all that the format holds."""
    if lock.taken_at.tzinfo is None:
        raise HamiFormatError(f"the lock's time {lock.taken_at.isoformat()} has no time zone")
    if "," in lock.namespace + lock.pod:
        raise HamiFormatError(f"the lock's holder {lock.namespace}/{lock.pod} has a comma in it")
    taken_at = lock.taken_at.astimezone(timezone.utc).isoformat(timespec="seconds").replace("+00:00", "Z")
    return f"{taken_at},{lock.namespace},{lock.pod}" if lock.namespace or lock.pod else taken_at


# --- the cards that people declare -------------------------------------------------------


@dataclass(frozen=True)
class Profile:
    """A card that one can buy: its type as HAMi's plugin registers it, memory in MiB, cores, slots."""

    type: str
    memory_mib: int
    cores: int = 100
    slots: int = 10


PROFILES: dict[str, Profile] = {
    "a100-40g": Profile("NVIDIA-NVIDIA A100-SXM4-40GB", 40960),
    "a100-80g": Profile("NVIDIA-NVIDIA A100-SXM4-80GB", 81920),
    "h100": Profile("NVIDIA-NVIDIA H100 80GB HBM3", 81559),
    "h200": Profile("NVIDIA-NVIDIA H200", 143771),
    "b200": Profile("NVIDIA-NVIDIA B200", 183359),
    "l4": Profile("NVIDIA-NVIDIA L4", 24576),
    "l40s": Profile("NVIDIA-NVIDIA L40S", 46068),
    "t4": Profile("NVIDIA-Tesla T4", 15360),
    "rtx-4090": Profile("NVIDIA-NVIDIA GeForce RTX 4090", 24564),
}

_DECLARATION_KEYS = frozenset(
    ("profile", "count", "uuid", "index", "type", "memory_mib", "cores", "slots", "numa", "mode", "healthy")
)
# More cards than any machine has; a slip of the finger must not fill a node's annotations.
_CARDS_MAX = 1024


def cards_from_profiles(node: str, declarations: Sequence[Mapping[str, object]]) -> list[Card]:
    """Make the cards of a node from declarations such as {profile: a100-80g, count: 1}.

    A declaration without profile gives type and memory_mib itself; with one, the other
    keys replace the profile's values. UUIDs follow from node, profile (or type) and index,
    so the same declaration always gives the same cards; a single card may give uuid and index itself.
    """
    cards: list[Card] = []
    for declaration in declarations:
        name, profile = _profile_of(node, declaration)
        count = _declared_integer(node, declaration, "count", 1, minimum=1, maximum=_CARDS_MAX)
        for key in ("uuid", "index"):
            if count > 1 and declaration.get(key) is not None:
                raise HamiFormatError(f"{node}: {count} cards cannot all have {key} {declaration[key]!r}.")
        for _nth in range(count):
            index = _declared_integer(node, declaration, "index", len(cards), minimum=0)
            stable = f"GPU-{uuidlib.uuid5(uuidlib.NAMESPACE_URL, f'{node}/{name}/{index}')}"
            cards.append(
                Card(
                    uuid=_declared_text(node, declaration, "uuid", stable),
                    index=index,
                    slots=_declared_integer(node, declaration, "slots", profile.slots, minimum=1),
                    memory_mib=_declared_integer(node, declaration, "memory_mib", profile.memory_mib, minimum=1),
                    cores=_declared_integer(node, declaration, "cores", profile.cores, minimum=1),
                    type=_declared_text(node, declaration, "type", profile.type),
                    numa=_declared_integer(node, declaration, "numa", 0, minimum=-1),
                    mode=_declared_text(node, declaration, "mode", MODE_HAMI_CORE),
                    healthy=_declared_healthy(node, declaration),
                )
            )
    _refuse_twins(node, cards)
    return cards


def _refuse_twins(node: str, cards: Sequence[Card]) -> None:
    for key in ("uuid", "index"):
        values = [getattr(card, key) for card in cards]
        twins = [value for value in values if values.count(value) > 1] if len(set(values)) < len(values) else []
        if twins:
            raise HamiFormatError(f"{node}: card {key} {twins[0]!r} stands twice.")


def _profile_of(node: str, declaration: Mapping[str, object]) -> tuple[str, Profile]:
    unknown = sorted(str(key) for key in declaration if key not in _DECLARATION_KEYS)
    if unknown:
        raise HamiFormatError(
            f"{node}: card key {unknown[0]!r} is unknown; use one of {', '.join(sorted(_DECLARATION_KEYS))}."
        )
    name = declaration.get("profile")
    if name is None:
        if not declaration.get("type") or not declaration.get("memory_mib"):
            raise HamiFormatError(
                f"{node}: a card without profile needs type and memory_mib, got {dict(declaration)!r}."
            )
        return str(declaration["type"]), Profile(type="", memory_mib=0)
    if not isinstance(name, str) or name not in PROFILES:
        raise HamiFormatError(
            f"{node}: card profile {name!r} is unknown; use one of {', '.join(PROFILES)}, or give type and memory_mib."
        )
    return name, PROFILES[name]


def _declared_integer(
    node: str, declaration: Mapping[str, object], key: str, default: int, minimum: int, maximum: int = _INT32_MAX
) -> int:
    value = declaration.get(key)
    if value is None:
        return default
    # Ansible hands numbers from --extra-vars over as strings.
    number = int(value) if isinstance(value, str) and _INTEGER.fullmatch(value) else value
    if isinstance(number, bool) or not isinstance(number, int) or not minimum <= number <= maximum:
        raise HamiFormatError(f"{node}: card {key} {_named(value)} is no number from {minimum} to {maximum}.")
    return number


def _declared_text(node: str, declaration: Mapping[str, object], key: str, default: str) -> str:
    value = declaration.get(key)
    if value is None:
        return default
    if not isinstance(value, str) or not value or re.search("[,:;]", value):
        raise HamiFormatError(f"{node}: card {key} {value!r} is no text without separators.")
    if key == "type" and "nvidia" not in value.lower():
        raise HamiFormatError(f"{node}: card type {value!r} does not contain NVIDIA, so HAMi would not see the card.")
    return value


def _declared_healthy(node: str, declaration: Mapping[str, object]) -> bool:
    value = declaration.get("healthy")
    if value is None:
        return True
    if not isinstance(value, bool):
        raise HamiFormatError(f"{node}: card healthy {value!r} is neither true nor false.")
    return value
