# Copyright (c) 2026, the tenantry.gpu authors
# GNU General Public License v3.0+ (see https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The cases of GPU scheduling, which one module tries and another one plans."""

from __future__ import annotations


class ModuleDocFragment:
    DOCUMENTATION = r"""
options:
  cases:
    description:
      - The cases, each a number of pods that are alike. M(tenantry.gpu.gpu_scheduling_verify) starts them at the same
        time, in this order, unless O(cases[].while_running) or O(cases[].after) say otherwise;
        M(tenantry.gpu.gpu_capacity_plan) places the pods one after the other, each case on what those before it left.
    type: list
    elements: dict
    required: true
    suboptions:
      name:
        description: Name of the case, part of the names of its pods.
        type: str
        required: true
      replicas:
        description: Number of pods.
        type: int
        default: 1
      cards:
        description: Number of distinct cards that each pod asks for (V(nvidia.com/gpu)).
        type: int
      memory_mib:
        description: Memory of each card, in MiB (V(nvidia.com/gpumem)).
        type: int
      memory_percent:
        description: Memory of each card, in percent of it (V(nvidia.com/gpumem-percentage)).
        type: int
      cores:
        description: Compute of each card, in percent of it (V(nvidia.com/gpucores)).
        type: int
      priority:
        description: Priority of its work on a card that it shares, 0 is high and 1 is low (V(nvidia.com/priority)).
        type: int
      containers:
        description:
          - The containers of each pod, for pods of more than one. One that asks for nothing gets no card.
          - Excludes O(cases[].cards), O(cases[].memory_mib), O(cases[].memory_percent), O(cases[].cores) and
            O(cases[].priority).
        type: list
        elements: dict
        suboptions:
          cards:
            description: Number of distinct cards.
            type: int
          memory_mib:
            description: Memory of each card, in MiB.
            type: int
          memory_percent:
            description: Memory of each card, in percent of it.
            type: int
          cores:
            description: Compute of each card, in percent of it.
            type: int
          priority:
            description: Priority of its work on a card that it shares, 0 is high and 1 is low.
            type: int
          init:
            description: Whether it is an init container.
            type: bool
            default: false
      node_policy:
        description: How a node is chosen.
        type: str
        choices: [binpack, spread]
      card_policy:
        description: How cards are chosen on a node, for example V(binpack), V(spread) or V(topology-aware).
        type: str
      use_types:
        description: Only cards whose type contains one of these.
        type: list
        elements: str
      avoid_types:
        description: No card whose type contains one of these.
        type: list
        elements: str
      use_uuids:
        description: Only these cards.
        type: list
        elements: str
      avoid_uuids:
        description: None of these cards.
        type: list
        elements: str
      annotations:
        description: More annotations of the pods.
        type: dict
      labels:
        description: More labels of the pods.
        type: dict
      node_selector:
        description: Labels that the node must have.
        type: dict
      priority_class:
        description: Priority class of the pods.
        type: str
      while_running:
        description:
          - The pods are created once those of these cases have their shares, and keep them until this case is decided.
        type: list
        elements: str
      after:
        description: The pods are created once those of these cases are gone. In a plan those give back what they took.
        type: list
        elements: str
      expect:
        description:
          - What is to become of every pod of the case.
          - Required by M(tenantry.gpu.gpu_scheduling_verify).
        type: dict
        suboptions:
          outcome:
            description:
              - V(placed) is a pod that runs with its share allocated and the node's lock released,
                V(refused) one that the scheduler finds no card for, V(denied) one that is not admitted,
                V(over_quota) one that is denied or refused because of O(quota).
            type: str
            choices: [placed, refused, denied, over_quota]
            required: true
          reason:
            description:
              - HAMi's reason for refusing it, for example V(CardInsufficientCore), and no other reason. What the case
                rules out itself by type and UUID does not count, nor do nodes without cards.
            type: str
          other_reasons:
            description: Whether other cards and nodes may refuse it for other reasons than O(cases[].expect.reason).
            type: bool
            default: false
          denial:
            description: Part of the message with which it is denied.
            type: str
          node:
            description: The node that it must be placed on, or be refused on for the reason.
            type: str
          uuid:
            description: A card that it must be placed on, or the only one that it may use and is refused on.
            type: str
          spread:
            description: Whether the shares of all pods must be on one card, or each on a card of its own.
            type: str
            choices: [any, one_card, distinct_cards]
            default: any
"""
