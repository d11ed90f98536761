"""Which cards a node has, and which of them are ill: what people declare and command."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from ansible_collections.tenantry.gpu.plugins.module_utils._hami import Card, HamiFormatError, parse_register

# Node annotation: UUIDs or indexes of cards that are to be unhealthy, with commas.
UNHEALTHY_CARDS = "tenantry.gpu/unhealthy-cards"


def declared_cards(config_map: Mapping[str, Any], node: str) -> list[Card]:
    """The cards under the node's name in the ConfigMap, in the register's JSON format.

    Raises HamiFormatError; a node that is not named there has no cards.
    """
    text = (config_map.get("data") or {}).get(node)
    if text is None:
        return []
    if not text.lstrip().startswith("["):
        raise HamiFormatError(f"cards of node {node} are no JSON list: {text[:80]!r}")
    return parse_register(text)


def with_health(cards: list[Card], command: str) -> list[Card]:
    """The cards, unhealthy where ``command`` (the annotation's text) names them by UUID or index."""
    ill = {part.strip() for part in command.split(",")}
    return [replace(card, healthy=card.healthy and not ill & {card.uuid, str(card.index)}) for card in cards]


def same_register(left: str, right: str) -> bool:
    """Whether two registers say the same, however they are written."""
    try:
        return bool(json.loads(left) == json.loads(right))
    except ValueError:
        return left == right
