# Copyright (c) 2026, the tenantry.gpu authors
# GNU General Public License v3.0+ (see https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import json
import re
from datetime import datetime, timedelta, timezone

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ansible_collections.tenantry.gpu.plugins.module_utils._hami import (
    PROFILES,
    Card,
    HamiFormatError,
    Handshake,
    Lock,
    Share,
    cards_from_profiles,
    format_allocation,
    format_cordon,
    format_handshake,
    format_lock,
    format_register,
    older_than_2_6,
    parse_allocation,
    parse_cordon,
    parse_handshake,
    parse_lock,
    parse_pair_scores,
    parse_register,
)

REGISTER_KEYS = ("id", "index", "count", "devmem", "devcore", "type", "numa", "mode", "health", "uuid", "score")

INT32 = st.integers(0, 2**31 - 1)
PLAIN = st.text(st.characters(codec="utf-8", exclude_characters=",:;"), min_size=1)
NAME = st.from_regex(r"[a-z0-9]([-a-z0-9]{0,20}[a-z0-9])?", fullmatch=True)

CARDS = st.lists(
    st.builds(
        Card,
        uuid=PLAIN,
        index=INT32,
        slots=INT32,
        memory_mib=INT32,
        cores=INT32,
        type=PLAIN,
        numa=st.integers(-1, 8),
        mode=st.sampled_from(("hami-core", "mig", "mps")),
        healthy=st.booleans(),
    ),
    min_size=1,
    unique_by=lambda card: card.uuid,
)
SHARES = st.builds(Share, uuid=PLAIN, type=PLAIN, memory_mib=INT32, cores=INT32)
ALLOCATIONS = st.lists(st.lists(SHARES).map(tuple)).map(tuple)
ZONES = st.integers(-14 * 60, 14 * 60).map(lambda minutes: timezone(timedelta(minutes=minutes)))
MOMENTS = st.datetimes(datetime(1970, 1, 2), datetime(9999, 12, 30), timezones=ZONES).map(
    lambda at: at.replace(microsecond=0)
)
LOCKS = st.one_of(st.builds(Lock, MOMENTS), st.builds(Lock, MOMENTS, NAME, NAME))

A100 = (
    '[{"id":"GPU-a","index":1,"count":10,"devmem":81920,"devcore":100,"type":"NVIDIA-NVIDIA A100-SXM4-80GB",'
    '"numa":1,"mode":"hami-core","health":true}]'
)


@given(CARDS)
def test_a_register_is_read_as_written(cards):
    assert parse_register(format_register(cards)) == cards


@given(CARDS)
def test_a_register_with_colons_is_read_as_written(cards):
    # the format without brackets: a first character of its own tells them apart
    cards = [card for card in cards if not card.uuid.strip().startswith("[") and card.uuid == card.uuid.strip()]
    if cards:
        assert parse_register(format_register(cards, colons=True)) == cards


@given(ALLOCATIONS)
def test_an_allocation_is_read_as_written(allocation):
    assert parse_allocation(format_allocation(allocation)) == allocation


@given(LOCKS)
def test_a_lock_is_read_as_written(lock):
    assert parse_lock(format_lock(lock)) == lock


@given(st.frozensets(NAME))
def test_a_cordon_is_read_as_written(uuids):
    assert parse_cordon(format_cordon(uuids)) == uuids


# What comes close to a format: its own separators and keys around anything, also what JSON alone can say.
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(st.characters()),
    lambda inner: st.lists(inner) | st.dictionaries(st.sampled_from(REGISTER_KEYS) | st.text(), inner),
)
NEARLY = st.lists(
    st.sampled_from((",", ":", ";", "[", "{", '"', "GPU-a", "true", "-", "Requesting_", "T", "Z", "9" * 5000))
    | st.integers().map(str)
    | st.text(st.characters()),
).map("".join)
PARSERS = (parse_register, parse_allocation, parse_lock, parse_cordon, parse_pair_scores, parse_handshake)


def bare(text):
    return re.sub(r"""['"\\\\]""", "", repr(text))


def refusal(parse, text):
    try:
        parse(text)
    except HamiFormatError as error:
        return str(error)
    return ""


@given(st.one_of(st.text(st.characters()), NEARLY, JSON.map(json.dumps)))
def test_any_text_is_read_or_named(text):
    older_than_2_6({"hami.io/node-handshake": text, "hami.io/node-nvidia-register": text})
    for parse in PARSERS:
        problem = refusal(parse, text)
        # Named as far as one line holds it, and fit to be sent on.
        assert not problem or (bare(text.strip()[:20]) in bare(problem) and len(problem.encode()) < 2000)


@pytest.mark.parametrize("parse", PARSERS)
@pytest.mark.parametrize(
    "text",
    [
        "[" * 100_000,
        '[{"id":' * 20_000,
        '[{"id":"a","count":' + "9" * 5000 + "}]",
        '[{"id":"a","count":NaN}]',
        '[{"id":"a","numa":-Infinity}]',
        '[{"uuid":"a","score":{"b":1e999}}]',
        '[{"uuid":["a"]}]',
        '[{"uuid":"a","score":[1]}]',
        '[{"id":"\\ud800"}]',
        "GPU-a," + "9" * 5000 + ",1,1,NVIDIA,0,true:",
        "GPU-a,NVIDIA," + "9" * 5000 + ",30:;",
        "000\u0661-01-01T00:00:00Z,a,b",
        "0001-01-01T00:00:00+99:99,a,b",
        "Requesting_2026-13-14 15:05:03",
        "Requesting_202\u0666-06-14 15:05:03",
    ],
)
def test_hostile_text_is_named(parse, text):
    if parse is parse_cordon:
        parse(text)
        return
    with pytest.raises(HamiFormatError) as caught:
        parse(text)
    assert len(str(caught.value)) < 700


def test_a_register_is_written_as_hami_writes_it():
    card = Card("GPU-a", 1, 10, 81920, 100, "NVIDIA-NVIDIA A100-SXM4-80GB", 1)
    assert format_register([card]) == A100
    assert parse_register(A100) == [card]


def test_zeros_are_left_out_and_a_missing_health_is_false():
    assert format_register([Card("GPU-a", healthy=False, mode="", cores=0, slots=0)]) == '[{"id":"GPU-a"}]'
    assert parse_register('[{"id":"GPU-a","migProfiles":[]}]') == [Card("GPU-a", 0, 0, 0, 0, "", 0, "", False)]


def test_seven_fields_with_colons_mean_index_0_and_hami_core():
    assert parse_register("GPU-a,10,24576,100,NVIDIA-NVIDIA L4,0,true:") == [
        Card("GPU-a", 0, 10, 24576, 100, "NVIDIA-NVIDIA L4")
    ]


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("", "''"),
        ("[{", "not JSON"),
        ("[1]", "1"),
        ('[{"count":1}]', "no id"),
        ('[{"id":"a","devmem":"24Gi"}]', "24Gi"),
        ('[{"id":"a","health":1}]', "health 1"),
        ('[{"id":"a","count":-1}]', "-1"),
        ('[{"id":"a","devmem":2147483648}]', "2147483648"),
        ('[{"id":"a"},{"id":"a"}]', "twice"),
        ("GPU-a,10,24576", "neither"),
        ("GPU-a,10,24576:", "'GPU-a,10,24576'"),
        ("GPU-a,ten,24576,100,NVIDIA,0,true:", "'ten'"),
        ("GPU-a,10,24576,100,NVIDIA,0,yes:", "'yes'"),
        ("GPU-a,10,24576,100,NVIDIA,0,true,-1,mig:", "'-1'"),
    ],
)
def test_a_register_that_cannot_be_read_is_named(text, named):
    with pytest.raises(HamiFormatError) as caught:
        parse_register(text)
    assert named in str(caught.value)


def test_a_card_with_a_separator_is_not_written_with_colons():
    with pytest.raises(HamiFormatError, match="'a,b'"):
        format_register([Card("a,b")], colons=True)


@pytest.mark.parametrize(
    ("text", "allocation"),
    [
        ("", ()),
        (";", ((),)),
        ("GPU-a,NVIDIA,3000,30:;", ((Share("GPU-a", "NVIDIA", 3000, 30),),)),
        (";GPU-a,NVIDIA,3000,30:;", ((), (Share("GPU-a", "NVIDIA", 3000, 30),))),
        ("a,NVIDIA,1,2:b,NVIDIA,1,2:;", ((Share("a", "NVIDIA", 1, 2), Share("b", "NVIDIA", 1, 2)),)),
    ],
)
def test_allocations_of_the_scheduler(text, allocation):
    assert parse_allocation(text) == allocation
    assert format_allocation(allocation) == text


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("GPU-a,NVIDIA,3000,30:", "semicolon"),
        ("GPU-a,NVIDIA,3000,30;", "colon"),
        ("GPU-a,NVIDIA,3000:;", "'GPU-a,NVIDIA,3000'"),
        (",NVIDIA,3000,30:;", "',NVIDIA,3000,30'"),
        ("GPU-a,NVIDIA,3000m,30:;", "'3000m'"),
        ("GPU-a,NVIDIA,3000,-1:;", "'-1'"),
        ("::;", "''"),
    ],
)
def test_an_allocation_that_cannot_be_read_is_named(text, named):
    with pytest.raises(HamiFormatError) as caught:
        parse_allocation(text)
    assert named in str(caught.value)


def test_a_share_with_a_separator_is_not_written():
    with pytest.raises(HamiFormatError, match="'a;b'"):
        format_allocation(((Share("a;b", "NVIDIA", 1, 1),),))


def test_a_lock_is_written_in_utc():
    taken_at = datetime(2026, 6, 14, 17, 5, 3, tzinfo=timezone(timedelta(hours=2)))
    assert format_lock(Lock(taken_at, "default", "p")) == "2026-06-14T15:05:03Z,default,p"
    assert parse_lock("2026-06-14T17:05:03.5+02:00,default,p") == Lock(taken_at, "default", "p")
    assert parse_lock("2026-06-14T15:05:03Z") == Lock(taken_at)


@pytest.mark.parametrize(
    "text", ["", "yesterday,a,b", "2026-06-14T15:05:03Z,a", "2026-06-14T15:05:03,a,b", "2026-13-14T15:05:03Z,a,b"]
)
def test_a_lock_that_cannot_be_read_is_named(text):
    with pytest.raises(HamiFormatError) as caught:
        parse_lock(text)
    assert repr(text) in str(caught.value)


@pytest.mark.parametrize(
    "lock", [Lock(datetime(2026, 1, 1)), Lock(datetime(2026, 1, 1, tzinfo=timezone.utc), "a,b", "c")]
)
def test_a_lock_that_cannot_be_written_is_refused(lock):
    with pytest.raises(HamiFormatError):
        format_lock(lock)


def test_a_handshake_is_stamped_as_hami_stamps_it():
    assert format_handshake(datetime(2026, 6, 14, 15, 5, 3)) == "Requesting_2026-06-14 15:05:03"


@pytest.mark.parametrize(
    ("text", "state", "at"),
    [
        ("Requesting_2026-06-14 15:05:03", "requesting", datetime(2026, 6, 14, 15, 5, 3)),
        ("Requesting_2026.06.14 15:05:03", "requesting", datetime(2026, 6, 14, 15, 5, 3)),
        ("Reported 2026-06-14 15:05:03.123456789 +0000 UTC m=+0.01", "reported", datetime(2026, 6, 14, 15, 5, 3)),
        ("Deleted_2026-06-14 15:05:03", "deleted", datetime(2026, 6, 14, 15, 5, 3)),
    ],
)
def test_a_handshake_is_read_as_any_version_wrote_it(text, state, at):
    assert parse_handshake(text) == Handshake(state, at)


@pytest.mark.parametrize(
    ("annotations", "sign"),
    [
        ({}, ""),
        ({"hami.io/node-nvidia-register": A100, "hami.io/node-handshake": "Requesting_2026-06-14 15:05:03"}, ""),
        ({"hami.io/node-nvidia-register": "GPU-a,10,1,100,NVIDIA,0,true,0,hami-core:"}, ""),
        ({"hami.io/node-nvidia-register": "GPU-a,10,1,100,NVIDIA,0,true:"}, "with seven fields a card"),
        ({"hami.io/node-handshake": "Requesting_2026.06.14 15:05:03"}, "handshake 'Requesting_2026.06"),
        ({"4pd.io/node-nvidia-register": "GPU-a"}, "annotation 4pd.io/node-nvidia-register"),
    ],
)
def test_what_only_old_versions_write_is_recognised(annotations, sign):
    assert sign in older_than_2_6(annotations) and bool(sign) == bool(older_than_2_6(annotations))


def test_pair_scores():
    assert parse_pair_scores('[{"uuid":"a","score":{"b":100}},{"uuid":"b"}]') == {"a": {"b": 100}, "b": {}}


def test_the_lab_s_cards():
    (a100,) = cards_from_profiles("a-worker-0", [{"profile": "a100-80g", "count": 1}])
    assert (a100.memory_mib, a100.cores, a100.slots, a100.type) == (81920, 100, 10, "NVIDIA-NVIDIA A100-SXM4-80GB")
    l4 = cards_from_profiles("b-worker-0", [{"profile": "l4", "count": 2}])
    assert (sum(c.memory_mib for c in l4), sum(c.cores for c in l4), sum(c.slots for c in l4)) == (49152, 200, 20)
    assert [card.index for card in l4] == [0, 1]


def test_cards_keep_their_uuid_and_differ_between_nodes():
    declared = [
        {"profile": "l4", "count": 2},
        {"profile": "t4"},
        {"type": "NVIDIA-X", "memory_mib": "1024", "slots": 1},
    ]
    once = cards_from_profiles("n0", declared)
    assert once == cards_from_profiles("n0", declared)
    uuids = {card.uuid for card in once + cards_from_profiles("n1", declared)}
    assert len(uuids) == 8
    assert (once[3].memory_mib, once[3].slots, once[3].type) == (1024, 1, "NVIDIA-X")


@pytest.mark.parametrize("name", PROFILES)
def test_every_profile_is_a_card_that_hami_sees(name):
    (card,) = cards_from_profiles("n0", [{"profile": name}])
    assert "nvidia" in card.type.lower() and card.healthy
    assert parse_register(format_register([card])) == [card]


@pytest.mark.parametrize(
    ("declaration", "message"),
    [
        ({"profile": "a100-800g"}, "n0: card profile 'a100-800g' is unknown; use one of a100-40g, "),
        ({"count": 1}, "n0: a card without profile needs type and memory_mib"),
        ({"profile": "l4", "count": 0}, "n0: card count 0 is no number from 1"),
        ({"profile": "l4", "cont": 1}, "n0: card key 'cont' is unknown"),
        ({"profile": "l4", "memory_mib": "24Gi"}, "n0: card memory_mib '24Gi' is no number"),
        ({"type": "AMD", "memory_mib": 1}, "n0: card type 'AMD' does not contain NVIDIA"),
        ({"type": "NVIDIA:x", "memory_mib": 1}, "n0: card type 'NVIDIA:x' is no text without separators"),
        ({"profile": "l4", "healthy": "yes"}, "n0: card healthy 'yes' is neither true nor false"),
    ],
)
def test_a_bad_declaration_is_one_sentence(declaration, message):
    with pytest.raises(HamiFormatError) as caught:
        cards_from_profiles("n0", [declaration])
    assert str(caught.value).startswith(message)
