# GNU General Public License v3.0+ (see https://www.gnu.org/licenses/gpl-3.0.txt)
"""One of several operators works: it holds a Lease, as controller-runtime's leader election does it."""

from __future__ import annotations

import asyncio
import datetime
import logging

from .api import Api, ApiError, Object, path_of

log = logging.getLogger("kamaji.election")

LEASE = "kamaji.clastix.io"  # the original's name (cmd/manager/cmd.go)
API_VERSION = "coordination.k8s.io/v1"
DURATION_S = 15
RENEW_S = 2.0


class Election:
    """Holds the Lease of a namespace; whoever loses it has to end, another works already."""

    def __init__(self, api: Api, namespace: str, identity: str) -> None:
        """Takes a name that a process keeps when it is started again in its place, such as the pod's."""
        self._api = api
        self._collection = path_of(API_VERSION, "Lease", namespace)
        self._path = f"{self._collection}/{LEASE}"
        self._identity = identity
        self._seen: tuple[str, float] = ("", 0.0)

    async def win(self) -> None:
        """Returns once this process is the leader."""
        while not await self._try():
            await asyncio.sleep(RENEW_S)
        log.info("became leader as %s", self._identity)

    async def keep(self) -> None:
        """Returns when the Lease could not be renewed in time, or is another's."""
        loop = asyncio.get_running_loop()
        renewed = loop.time()
        while loop.time() - renewed < DURATION_S - 2 * RENEW_S:
            await asyncio.sleep(RENEW_S)
            if await self._try():
                renewed = loop.time()
        log.error("lost the lease")

    async def release(self) -> None:
        """Lets the next one start at once instead of after the Lease's duration."""
        try:
            lease = await self._api.get(self._path)
            if lease and lease["spec"].get("holderIdentity") == self._identity:
                lease["spec"]["holderIdentity"] = ""
                await self._api.request("PUT", self._path, lease)
        except ApiError as error:
            log.warning("the lease was not released: %s", error)

    async def _try(self) -> bool:
        """Take or renew the Lease where it is ours, nobody's, or was not renewed for its duration."""
        try:
            lease = await self._api.get(self._path)
            if lease is None:
                await self._api.request("POST", self._collection, self._lease({"metadata": {"name": LEASE}}))
                return True
            spec = lease.get("spec", {})
            if spec.get("holderIdentity") not in ("", None, self._identity) and not self._expired(spec):
                return False
            await self._api.request("PUT", self._path, self._lease(lease))
        except ApiError as error:  # 409: another was faster
            log.debug("%s", error)
            return False
        return True

    def _expired(self, spec: Object) -> bool:
        """Whether the holder's last renewal is the same for its whole duration, by this process's clock."""
        now = asyncio.get_running_loop().time()
        renewal = f"{spec.get('holderIdentity')} {spec.get('renewTime')}"
        if renewal != self._seen[0]:
            self._seen = (renewal, now)
        return now - self._seen[1] > float(spec.get("leaseDurationSeconds") or DURATION_S)

    def _lease(self, old: Object) -> Object:
        now = datetime.datetime.now(datetime.UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")
        spec = dict(old.get("spec", {}))
        if spec.get("holderIdentity") != self._identity:
            spec |= {"acquireTime": now, "leaseTransitions": int(spec.get("leaseTransitions") or 0) + 1}
        spec |= {"holderIdentity": self._identity, "leaseDurationSeconds": DURATION_S, "renewTime": now}
        return {"apiVersion": API_VERSION, "kind": "Lease", "metadata": old["metadata"], "spec": spec}
