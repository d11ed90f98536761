# GNU General Public License v3.0+ (see https://www.gnu.org/licenses/gpl-3.0.txt)
"""The operator's process: kopf watches, a task a tenant works, health and metrics are served."""

from __future__ import annotations

import argparse
import asyncio
import logging
import os
import signal
import socket
import ssl
import sys
from collections.abc import Coroutine, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import kopf
from aiohttp import web

from . import datastores, model
from .api import Api, ApiError
from .election import Election
from .reconcile import FAILURES, Reconciler

log = logging.getLogger("kamaji")

Key = tuple[str, str]  # namespace and name; a DataStore has no namespace
SERVICE_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
RESYNC_S = 600
FIRST_RETRY_S = 0.5
LAST_RETRY_S = 15.0


@dataclass
class Worker:
    """The task that serves one resource, and what it has been told."""

    told: asyncio.Event = field(default_factory=asyncio.Event)
    all_of_it: bool = True
    generation: int = -1
    task: asyncio.Task[None] | None = None


class Operator:
    """Hands every change to the one task that serves its resource, so that nothing is done twice at a time."""

    def __init__(self, api: Api, default_datastore: str, work_folder: Path, at_once: int) -> None:
        self._api = api
        self._default_datastore = default_datastore
        self._reconciler = Reconciler(api, default_datastore, work_folder)
        self._slots = asyncio.Semaphore(at_once)
        self._workers: dict[Key, Worker] = {}
        self.states: dict[Key, str] = {}
        self.stores_ready: dict[str, bool] = {}

    def tell(self, key: Key, all_of_it: bool = True) -> None:
        """Something changed at this resource; all_of_it is False where only its status may be behind."""
        worker = self._workers.get(key)
        if worker is None:
            if not all_of_it:
                return
            worker = self._workers[key] = Worker()
            worker.task = asyncio.create_task(self._serve(key, worker))
        worker.all_of_it = worker.all_of_it or all_of_it
        worker.told.set()

    def tell_if_new(self, key: Key, resource: Any) -> None:
        """Our own writes to the status come back as events: they change no generation."""
        metadata = resource["metadata"]
        worker = self._workers.get(key)
        mark = hash(
            (
                metadata.get("generation"),
                metadata.get("deletionTimestamp"),
                model.PAUSED in metadata.get("annotations", {}),
            )
        )
        if worker is None or worker.generation != mark:
            self.tell(key)
            self._workers[key].generation = mark

    def tell_stores(self) -> None:
        for key in list(self._workers):
            if not key[0]:
                self.tell(key)

    async def _serve(self, key: Key, worker: Worker) -> None:
        retry_s = 0.0
        while True:
            try:
                async with asyncio.timeout(retry_s or RESYNC_S):
                    await worker.told.wait()
            except TimeoutError:
                worker.all_of_it = True
            worker.told.clear()
            all_of_it, worker.all_of_it = worker.all_of_it, False
            try:
                if not await self._once(key, all_of_it):
                    break
                retry_s = 0.0
            except FAILURES as error:
                retry_s = min(LAST_RETRY_S, retry_s * 2 or FIRST_RETRY_S)
                worker.all_of_it = True
                log.warning("%s: again in %.1f s: %s", "/".join(filter(None, key)), retry_s, error)
        self._workers.pop(key, None)
        self.states.pop(key, None)
        self.stores_ready.pop(key[1], None)
        self.tell_stores()

    async def _once(self, key: Key, all_of_it: bool) -> bool:
        namespace, name = key
        if not namespace:
            return await datastores.reconcile(self._api, name, self._default_datastore)
        if not all_of_it:
            await self._reconciler.look(namespace, name)
            return True
        async with self._slots:
            there = await self._reconciler.reconcile(namespace, name)
        self.tell_stores()
        return there

    def stop(self) -> None:
        """Ends all tasks; what they were at is taken up again by the next process."""
        for worker in self._workers.values():
            if worker.task:
                worker.task.cancel()


def parse_arguments(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """The original's flags, as far as the chart and its users set them."""
    parser = argparse.ArgumentParser(prog="kamaji", description=__doc__)
    manager = parser.add_subparsers(dest="command", required=True).add_parser("manager")
    manager.add_argument("--datastore", default="", help="the DataStore of tenants that name none")
    manager.add_argument(
        "--max-concurrent-tcp-reconciles",
        type=int,
        default=os.cpu_count() or 1,
        help="how many control planes are made at the same time (default: one a core)",
    )
    manager.add_argument("--health-probe-bind-address", default=":8081")
    manager.add_argument("--metrics-bind-address", default=":8080")
    manager.add_argument("--tmp-directory", type=Path, default=Path("/tmp/kamaji"))  # noqa: S108
    manager.add_argument("--zap-devel", action="store_true", help="log everything")
    manager.add_argument("--leader-elect", action="store_true", help="work only while holding the Lease")
    manager.add_argument("--disable-telemetry", nargs="?", help="accepted, without effect: there is none")
    return parser.parse_args(arguments)


def connection() -> kopf.ConnectionInfo:
    """How the API server is reached: as the pod's service account, else by KUBECONFIG."""
    if (SERVICE_ACCOUNT / "token").exists():
        host, port = os.environ["KUBERNETES_SERVICE_HOST"], os.environ["KUBERNETES_SERVICE_PORT"]
        return kopf.ConnectionInfo(
            server=f"https://{f'[{host}]' if ':' in host else host}:{port}",
            ca_path=str(SERVICE_ACCOUNT / "ca.crt"),
            token=(SERVICE_ACCOUNT / "token").read_text(encoding="utf-8").strip(),
        )
    found = kopf.login_with_kubeconfig(settings=kopf.OperatorSettings())
    if found is None:
        raise SystemExit("kamaji: neither a service account nor KUBECONFIG; run it in a pod or set KUBECONFIG.")
    return found


def api_of(info: kopf.ConnectionInfo) -> Api:
    if info.token and not info.certificate_data and not info.certificate_path:
        context = ssl.create_default_context(cafile=info.ca_path)
        return Api(info.server, context, token_file=SERVICE_ACCOUNT / "token")
    return Api(info.server, info.as_ssl_context())


async def serve(application: web.Application, address: str) -> web.AppRunner:
    runner = web.AppRunner(application, access_log=None)
    await runner.setup()
    host, _, port = address.rpartition(":")
    await web.TCPSite(runner, host or None, int(port)).start()
    return runner


def health(ready: asyncio.Event) -> web.Application:
    async def live(_: web.Request) -> web.Response:
        return web.Response(text="ok")

    async def is_ready(_: web.Request) -> web.Response:
        return web.Response(text="ok" if ready.is_set() else "not yet", status=200 if ready.is_set() else 503)

    application = web.Application()
    application.router.add_get("/healthz", live)
    application.router.add_get("/readyz", is_ready)
    return application


def metrics(operator: Operator) -> web.Application:
    async def render(_: web.Request) -> web.Response:
        lines = ["# TYPE kamaji_tenant_control_plane_status gauge"]
        for (namespace, name), state in sorted(operator.states.items()):
            ready = str(state == "Ready").lower()
            labels = f'tcp_namespace="{namespace}",tcp_name="{name}",status="{state}",ready="{ready}"'
            lines.append(f"kamaji_tenant_control_plane_status{{{labels}}} 1")
        lines.append("# TYPE kamaji_datastore_status gauge")
        for name, usable in sorted(operator.stores_ready.items()):
            labels = f'datastore_name="{name}",ready="{str(usable).lower()}"'
            lines.append(f"kamaji_datastore_status{{{labels}}} 1")
        return web.Response(text="\n".join(lines) + "\n")

    application = web.Application()
    application.router.add_get("/metrics", render)
    return application


def watch(operator: Operator, registry: kopf.OperatorRegistry) -> None:
    """Registers what kopf watches: the two resources, and what belongs to a tenant."""

    group, version = model.API_VERSION.split("/")

    @kopf.on.event(group, version, "tenantcontrolplanes", registry=registry)
    async def tenant_changed(body: kopf.Body, namespace: str | None, name: str, **_: Any) -> None:
        namespace = namespace or ""
        state = body.get("status", {}).get("kubernetesResources", {}).get("version", {}).get("status", "Unknown")
        operator.states[namespace, name] = state
        operator.tell_if_new((namespace, name), body)

    @kopf.on.event(group, version, "datastores", registry=registry)
    async def datastore_changed(body: kopf.Body, name: str, **_: Any) -> None:
        operator.stores_ready[name] = bool(body.get("status", {}).get("ready"))
        operator.tell_if_new(("", name), body)

    async def part_changed(event: kopf.RawEvent, namespace: str | None, body: kopf.Body, **_: Any) -> None:
        metadata = body["metadata"]
        asked = metadata.get("annotations", {}).get(model.ROTATE) == ""
        key = (namespace or "", metadata["labels"][model.NAME_LABEL])
        operator.tell(key, all_of_it=event["type"] == "DELETED" or asked)

    of_a_tenant: dict[str, Any] = {model.PROJECT_LABEL: "kamaji", model.NAME_LABEL: kopf.PRESENT}
    for resource in ("deployments", "services", "secrets"):
        kopf.on.event(resource, labels=of_a_tenant, registry=registry)(part_changed)


def settings() -> kopf.OperatorSettings:
    chosen = kopf.OperatorSettings()
    chosen.posting.enabled = False
    chosen.scanning.disabled = False
    for resource in ("deployments", "services", "secrets"):
        chosen.watching.label_selectors[resource] = f"{model.PROJECT_LABEL}=kamaji"
    return chosen


async def first_of(*tasks: Coroutine[Any, Any, None]) -> None:
    """Runs all until one ends."""
    running = [asyncio.ensure_future(task) for task in tasks]
    await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
    for task in running:
        task.cancel()
    await asyncio.gather(*running, return_exceptions=True)


async def manage(options: argparse.Namespace) -> None:
    info = connection()
    registry = kopf.OperatorRegistry()
    kopf.on.login(registry=registry)(lambda **_: connection())
    ready = asyncio.Event()
    # Until kopf runs, which has its own handler.
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, sys.exit)
    async with AsyncExitStack() as stack:
        api = await stack.enter_async_context(api_of(info))
        operator = Operator(api, options.datastore, options.tmp_directory, options.max_concurrent_tcp_reconciles)
        kopf.on.cleanup(registry=registry)(lambda **_: operator.stop())
        watch(operator, registry)
        for application, address in (
            (health(ready), options.health_probe_bind_address),
            (metrics(operator), options.metrics_bind_address),
        ):
            if address != "0":
                runner = await serve(application, address)
                stack.push_async_callback(runner.cleanup)
        operating = kopf.operator(
            registry=registry, settings=settings(), standalone=True, clusterwide=True, ready_flag=ready
        )
        if not options.leader_elect:
            await operating
            return
        election = Election(api, os.environ.get("POD_NAMESPACE", "default"), socket.gethostname())
        ready.set()  # one that waits for its turn is well
        await election.win()
        ready.clear()
        try:
            await first_of(operating, election.keep())
        finally:
            await election.release()


def main() -> None:
    options = parse_arguments()
    logging.basicConfig(
        level=logging.DEBUG if options.zap_devel else logging.INFO,
        format="%(asctime)s %(levelname)s %(name)s: %(message)s",
    )
    logging.getLogger("kopf").setLevel(logging.DEBUG if options.zap_devel else logging.WARNING)
    try:
        asyncio.run(manage(options))
    except ApiError as error:
        raise SystemExit(f"kamaji: {error}") from error


if __name__ == "__main__":
    main()
