# Copyright (c) 2026, the tenantry.gpu authors
# GNU General Public License v3.0+ (see https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""What an installation takes from elsewhere: references of images, checksums, the lock. No I/O."""

from __future__ import annotations

import fnmatch
import json
import re
import urllib.parse
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from ._checksums import ArtifactsError

DIGEST = re.compile(r"sha256:[0-9a-f]{64}")
CHECKSUM = re.compile(r"[0-9a-f]{64}")
# Of a reference without its tag and digest, as distribution's reference package has it.
NAME = re.compile(r"(?:[a-zA-Z0-9.-]+(?::\d+)?/)?[a-z0-9]+(?:[._-]+[a-z0-9]+)*(?:/[a-z0-9]+(?:[._-]+[a-z0-9]+)*)*")
TAG = re.compile(r"\w[\w.-]{0,127}")
LOCK_VERSION = 1


@dataclass(frozen=True, order=True)
class Reference:
    """An image's name as a manifest writes it, taken apart. ``digest`` is empty where it has none."""

    registry: str
    repository: str
    tag: str
    digest: str = ""

    def __str__(self) -> str:
        return f"{self.registry}/{self.at_mirror}"

    @property
    def at_mirror(self) -> str:
        """Its name at a registry that serves every image under its upstream path."""
        tag = f":{self.tag}" if self.tag else ""
        return f"{self.repository}{tag}" + (f"@{self.digest}" if self.digest else "")

    @property
    def mark(self) -> str:
        """What asks a registry for its manifest."""
        return self.tag or self.digest


def parse_reference(text: str) -> Reference:
    """Take a reference apart as containerd does: docker.io and its library are implied, and the tag latest.

    Raises ArtifactsError where it is none.
    """
    rest, at, digest = text.partition("@")
    name, colon, tag = rest.rpartition(":")
    if not colon or "/" in tag:  # the colon was a port's
        name, colon, tag = rest, "", ""
    valid = NAME.fullmatch(name) and (not colon or TAG.fullmatch(tag)) and (not at or DIGEST.fullmatch(digest))
    if not valid:
        raise ArtifactsError(f"{text} is no reference of an image; write it as registry/repository:tag.")
    first, slash, path = name.partition("/")
    registry, repository = ("docker.io", name)
    if slash and (first == "localhost" or re.search(r"[.:A-Z]", first)):
        registry, repository = first, path
    if registry == "docker.io" and "/" not in repository:
        repository = f"library/{repository}"
    return Reference(registry, repository, tag or ("" if digest else "latest"), digest)


def collisions(references: Iterable[Reference]) -> list[str]:
    """Sentences on images of two registries that one mirror cannot tell apart."""
    homes: dict[str, Reference] = {}
    sentences = []
    for reference in sorted(set(references)):
        other = homes.setdefault(f"{reference.repository}:{reference.mark}", reference)
        if (other.registry, other.digest) != (reference.registry, reference.digest):
            sentences.append(
                f"{reference} and {other} would both be {reference.repository}:{reference.mark} at the mirror; "
                "take the image from one of the two."
            )
    return sentences


def source_of(reference: Reference, sources: Mapping[str, str], digest: str = "") -> tuple[str, bool]:
    """Where to read an image, as skopeo writes it, and whether it needs no TLS.

    ``sources`` says what stands in for the beginnings of references: the URL or address of a registry, or a name with
    one of skopeo's transports for a whole reference. The longest beginning decides. With ``digest`` exactly that image.
    """
    text = str(reference)
    begin = max((key for key in sources if text.startswith(key)), key=len, default="")
    instead = sources[begin] if begin else reference.registry
    if begin == text and re.match(r"[a-z-]+:", instead) and "://" not in instead:
        return instead, False
    insecure = instead.startswith("http://")
    address = instead.partition("://")[2] or instead
    rest = text[len(begin or reference.registry) :].lstrip("/").partition("@")[0]
    wanted = digest or reference.digest
    if wanted:
        rest = f"{rest.rpartition(':')[0] or rest}@{wanted}"
    return f"docker://{address.rstrip('/')}/{rest}", insecure


@dataclass(frozen=True)
class Origin:
    """How a project publishes a program: what follows its base URL, and what makes the URL of the checksum."""

    program: str
    checksum: str


_RELEASE = "/v{version}/{file}"
ORIGINS = {
    "cni-plugins": Origin(_RELEASE, "{url}.sha256"),
    "containerd": Origin(_RELEASE, "{url}.sha256sum"),
    "crictl": Origin(_RELEASE, "{url}.sha256"),
    "helm": Origin("/{file}", "{url}.sha256sum"),
    "kubernetes": Origin("/v{version}/bin/linux/{architecture}/{file}", "{url}.sha256"),
    "runc": Origin(_RELEASE, "{base}/v{version}/runc.sha256sum"),
}


def published(path: str, bases: Mapping[str, str], architecture: str) -> dict[str, str]:
    """Where a program of a folder of artifacts is published, and its checksum.

    ``path`` is files/<program>/<version>/<file as published>, ``bases`` the base URL of each program. Raises
    ArtifactsError for a program that is not known.
    """
    words = path.split("/")
    if len(words) != 4 or words[1] not in ORIGINS or words[1] not in bases:
        raise ArtifactsError(f"{path}: it is not known where this is published; known are {', '.join(sorted(bases))}.")
    origin, base = ORIGINS[words[1]], bases[words[1]].rstrip("/")
    url = base + origin.program.format(version=words[2], file=words[3], architecture=architecture)
    return {"path": path, "url": url, "checksum_url": origin.checksum.format(url=url, base=base, version=words[2])}


def published_checksum(text: str, name: str) -> str:
    """The checksum of the file ``name`` in what a project publishes: one checksum alone, or lines of sha256sum.

    Raises ArtifactsError where there is none.
    """
    words = [line.split() for line in text.splitlines() if line.strip()]
    for line in words:
        if CHECKSUM.fullmatch(line[0]) and line[1:] and line[-1].lstrip("*").rpartition("/")[2] == name:
            return line[0]
    if len(words) == 1 and CHECKSUM.fullmatch(words[0][0]) and len(words[0]) == 1:
        return words[0][0]
    raise ArtifactsError(f"the published checksums do not name {name}.")


# What apt and dnf call the files of packages. A package is asked for by one of the groups: its name, or with a version.
PACKAGES = {
    "Debian": re.compile(r"(([^_]+)_[^_]+)_[^_]+\.deb"),
    "RedHat": re.compile(r"(((.+)-[^-]+)-[^-]+)\.[^-.]+\.rpm"),
}


def missing_packages(wanted: Mapping[str, Iterable[str]], files: Iterable[str]) -> list[str]:
    """The packages that a repository with these files lacks, of those that its family of distributions is to have.

    A version may stand behind a name, with wildcards, as apt (name=1.2-*) and dnf (name-1.2) take it.
    """
    names = [urllib.parse.unquote(file) for file in files]  # apt writes a version's colon as %3a
    missing = []
    for family, shape in PACKAGES.items():
        known = {known for found in map(shape.fullmatch, names) if found for known in found.groups()}
        if known:
            missing += [name for name in wanted.get(family, ()) if not fnmatch.filter(known, name.replace("=", "_"))]
    return missing


def parse_lock(text: str) -> dict[str, str]:
    """Read images.json: the digest of each reference. Raises ArtifactsError where it is none."""
    try:
        lock = json.loads(text)
        images = {image["reference"]: image["digest"] for image in lock["images"]}
    except (ValueError, KeyError, TypeError) as error:
        raise ArtifactsError(f"images.json cannot be read: {error!r}.") from error
    for reference, digest in images.items():
        if not isinstance(digest, str) or not DIGEST.fullmatch(digest):
            raise ArtifactsError(f"images.json has no digest for {reference}: {digest}")
    return images


def format_lock(images: Mapping[str, str]) -> str:
    """Write images.json."""
    entries = [{"reference": reference, "digest": digest} for reference, digest in sorted(images.items())]
    return json.dumps({"version": LOCK_VERSION, "images": entries}, indent=2) + "\n"


def images_in(documents: Iterable[object]) -> Iterator[str]:
    """Every image that the containers of Kubernetes objects name."""
    for document in documents:
        if isinstance(document, Mapping):
            for key, value in document.items():
                if key in {"containers", "initContainers", "ephemeralContainers"} and isinstance(value, list):
                    yield from (entry["image"] for entry in value if isinstance(entry, Mapping) and entry.get("image"))
                else:
                    yield from images_in([value])
        elif isinstance(document, list):
            yield from images_in(document)


@dataclass(frozen=True)
class Part:
    """A manifest or a blob that an image consists of."""

    digest: str
    size: int  # in bytes
    manifest: bool


def parts_of(manifest: bytes) -> list[Part]:
    """What a manifest or an index names (OCI image-spec, manifest.md and image-index.md; Docker's have the same keys).

    A layer with URLs of its own (a Windows base layer) is in no registry and left out. Raises ArtifactsError where it
    cannot be read.
    """
    try:
        content = json.loads(manifest)
        if "manifests" in content:
            return [Part(child["digest"], child.get("size", 0), True) for child in content["manifests"]]
        blobs = [content["config"], *content["layers"]]
        return [Part(blob["digest"], blob.get("size", 0), False) for blob in blobs if not blob.get("urls")]
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ArtifactsError(f"its manifest is of a kind that is not known here: {error!r}") from error


def complete_list(
    wanted: Iterable[Mapping[str, Any]], bases: Mapping[str, str], architecture: str, lock: Mapping[str, str]
) -> dict[str, Any]:
    """Merge what roles say they take, each artifact once: images with their digests, charts, files with their URLs, and
    packages by family of distributions. Raises ArtifactsError where it contradicts itself or names what cannot be had.
    """
    parts = list(wanted)
    references = {parse_reference(image) for part in parts for image in part.get("images", ())}
    charts: dict[tuple[str, ...], Mapping[str, Any]] = {}
    packages: dict[str, set[str]] = {}
    for part in parts:
        for chart in part.get("charts", ()):
            charts[chart["name"], chart["version"], json.dumps(chart, sort_keys=True)] = chart
        for family, names in part.get("packages", {}).items():
            packages.setdefault(family, set()).update(names)
    problems = collisions(references)
    if problems:
        raise ArtifactsError(" ".join(problems))
    files = sorted({file for part in parts for file in part.get("files", ())})
    return {
        "images": [
            {"reference": str(reference), "digest": lock.get(str(reference)) or reference.digest}
            for reference in sorted(references)
        ],
        "charts": [dict(charts[key]) for key in sorted(charts)],
        "files": [published(file, bases, architecture) for file in files],
        "packages": {family: sorted(names) for family, names in sorted(packages.items())},
    }
