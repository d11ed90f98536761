"""Run the simulator of one node: python3 -m gpu_simulator. Settings come from the environment.

NODE_NAME: the node. CARDS_NAMESPACE, CARDS_CONFIG_MAP: where its cards stand. LIFECYCLE: full or none.
DEVICE_PLUGIN_FOLDER: where kubelet's sockets are.
"""

from __future__ import annotations

import logging
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import grpc

from ansible_collections.tenantry.gpu.plugins.module_utils._hami import (
    NODE_REGISTER,
    Card,
    HamiFormatError,
    format_register,
)

from .cards import UNHEALTHY_CARDS, declared_cards, same_register, with_health
from .kubernetes_api import ApiError, KubernetesApi
from .lifecycle import Lifecycle, annotations_of
from .plugin import DevicePlugin

LOG = logging.getLogger("gpu_simulator")
KUBELET_CHECK_S = 0.5
RETRY_S = 1
GIVE_UP_AFTER_S = 120


class Simulator:
    """Keeps three things equal to what is declared: the node's register, kubelet's devices, our registration."""

    def __init__(self, api: KubernetesApi, plugin: DevicePlugin, node: str, namespace: str, config_map: str) -> None:
        self._api, self._plugin, self._node = api, plugin, node
        self._config_maps = f"/api/v1/namespaces/{namespace}/configmaps"
        self._config_map = config_map
        self._mutex = threading.Lock()
        self._cards: list[Card] | None = None
        self._annotations: dict[str, str] | None = None
        self._stopping = threading.Event()
        self._failure = ""

    def stop(self) -> None:
        self._stopping.set()

    def run(self) -> int:
        """Serve until stop(); the exit status is 0 then, and 1 when the API stays away or a thread dies."""
        for path, name, handler in (
            (self._config_maps, self._config_map, self._cards_changed),
            ("/api/v1/nodes", self._node, self._node_changed),
        ):
            threading.Thread(target=self._follow, args=(path, name, handler), daemon=True).start()
        known = None
        while not self._stopping.is_set():
            present = self._plugin.kubelet_identity()
            if present and (present != known or not self._plugin.socket.exists()):
                known = present if self._register() else None
            self._stopping.wait(KUBELET_CHECK_S)
        self._plugin.stop()
        if self._failure:
            LOG.error("%s", self._failure)
        return 1 if self._failure else 0

    def _register(self) -> bool:
        try:
            self._plugin.start()
        except grpc.RpcError as error:
            LOG.warning("kubelet does not answer yet: %s", error)
            return False
        return True

    def _follow(self, path: str, name: str, handler: Callable[[dict[str, Any]], None]) -> None:
        """Call ``handler`` with each state of an object; give up when the API is away for too long."""
        failing_since: float | None = None
        while not self._stopping.is_set():
            try:
                for thing in self._api.watch(path, name):
                    failing_since = None
                    handler(thing)
            except HamiFormatError as error:
                LOG.error("%s is left as it was: %s", name, error)
            except ApiError as error:
                LOG.warning("%s", error)
                failing_since = failing_since or time.monotonic()
                if time.monotonic() - failing_since > GIVE_UP_AFTER_S:
                    self._failure = f"gave up after {GIVE_UP_AFTER_S} s: {error}"
                    self.stop()
            self._stopping.wait(RETRY_S)

    def _cards_changed(self, config_map: dict[str, Any]) -> None:
        cards = declared_cards(config_map, self._node)
        with self._mutex:
            self._cards = cards
            self._apply()

    def _node_changed(self, node: dict[str, Any]) -> None:
        with self._mutex:
            self._annotations = annotations_of(node)
            self._apply()

    def _apply(self) -> None:
        """Write the register if it differs, then offer the devices; nothing before both sides are known."""
        if self._cards is None or self._annotations is None:
            return
        cards = with_health(self._cards, self._annotations.get(UNHEALTHY_CARDS, ""))
        register = format_register(cards) if cards else None
        written = self._annotations.get(NODE_REGISTER)
        if register != written and not (register and written and same_register(register, written)):
            node = self._api.patch(
                f"/api/v1/nodes/{self._node}", {"metadata": {"annotations": {NODE_REGISTER: register}}}
            )
            self._annotations = annotations_of(node)
            LOG.info("node %s declares %d cards: %s", self._node, len(cards), register)
        self._plugin.offer(cards)


def main() -> int:
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s", stream=sys.stdout)
    node = os.environ["NODE_NAME"]
    api = KubernetesApi.in_cluster()
    lifecycle = Lifecycle(api, node) if os.environ.get("LIFECYCLE", "full") == "full" else None
    plugin = DevicePlugin(Path(os.environ.get("DEVICE_PLUGIN_FOLDER", "/var/lib/kubelet/device-plugins")), lifecycle)
    simulator = Simulator(api, plugin, node, os.environ["CARDS_NAMESPACE"], os.environ["CARDS_CONFIG_MAP"])
    for name in (signal.SIGTERM, signal.SIGINT):
        signal.signal(name, lambda number, frame: simulator.stop())
    return simulator.run()


if __name__ == "__main__":
    sys.exit(main())
