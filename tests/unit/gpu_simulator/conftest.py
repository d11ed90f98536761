"""A kubelet and an API for the simulator: the first speaks gRPC over real sockets, the second is a dictionary."""

from __future__ import annotations

import copy
import queue
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

grpc = pytest.importorskip("grpc")
CHECKOUT = Path(__file__).resolve().parents[3]
# Both: a namespace package forgets paths that were not on sys.path when sys.path changes.
sys.path[:0] = [str(CHECKOUT / "images" / "gpu-simulator"), str(CHECKOUT / "collections")]

from gpu_simulator import messages  # noqa: E402
from gpu_simulator.kubernetes_api import ApiError  # noqa: E402

Object = dict[str, Any]


class FakeApi:
    """Objects by path; conditional merge patches, and watches. ``refuse`` maps (verb, path) to ApiErrors."""

    node = "a-worker-0"
    node_path = "/api/v1/nodes/a-worker-0"

    def __init__(self) -> None:
        self.objects: dict[str, Object] = {self.node_path: {"metadata": {"name": self.node, "resourceVersion": "1"}}}
        self.refuse: dict[tuple[str, str], list[ApiError]] = {}
        self.before_patch: Callable[[str], None] = lambda path: None
        self._watchers: dict[str, list[queue.Queue[Object]]] = {}
        self._mutex = threading.RLock()

    def annotations(self, path: str) -> dict[str, str]:
        return self.objects[path]["metadata"].get("annotations") or {}

    def put(self, path: str, thing: Object) -> None:
        with self._mutex:
            self.objects[path] = thing
            thing["metadata"].setdefault("resourceVersion", "1")
            for watcher in self._watchers.get(path, []):
                watcher.put(copy.deepcopy(thing))

    def get(self, path: str, **query: str) -> Object:
        self._maybe_refuse("GET", path)
        if path == "/api/v1/pods":
            return {"items": [copy.deepcopy(thing) for name, thing in self.objects.items() if "/pods/" in name]}
        if path not in self.objects:
            raise ApiError(404, f"GET {path}: 404 not found")
        return copy.deepcopy(self.objects[path])

    def patch(self, path: str, body: Object) -> Object:
        self._maybe_refuse("PATCH", path)
        self.before_patch(path)
        with self._mutex:
            metadata = self.objects[path]["metadata"]
            wanted = body["metadata"].get("resourceVersion", metadata["resourceVersion"])
            if wanted != metadata["resourceVersion"]:
                raise ApiError(409, f"PATCH {path}: 409 the object has been modified")
            annotations = {**(metadata.get("annotations") or {}), **body["metadata"]["annotations"]}
            metadata["annotations"] = {key: value for key, value in annotations.items() if value is not None}
            metadata["resourceVersion"] = str(int(metadata["resourceVersion"]) + 1)
            self.put(path, self.objects[path])
        return copy.deepcopy(self.objects[path])

    def watch(self, path: str, name: str) -> Iterator[Object]:
        whole = f"{path}/{name}"
        self._maybe_refuse("WATCH", whole)
        events: queue.Queue[Object] = queue.Queue()
        with self._mutex:
            self._watchers.setdefault(whole, []).append(events)
            events.put(copy.deepcopy(self.objects.get(whole, {})))
        while True:
            yield events.get()

    def _maybe_refuse(self, verb: str, path: str) -> None:
        if self.refuse.get((verb, path)):
            raise self.refuse[(verb, path)].pop(0)


class FakeKubelet:
    """Takes registrations, follows the devices and allocates, as the kubelet's device manager does."""

    @staticmethod
    def until(condition: Callable[[], Any], timeout_s: float = 5) -> Any:
        """The first true value of ``condition``; fails after ``timeout_s`` seconds."""
        end = time.monotonic() + timeout_s
        while time.monotonic() < end:
            if value := condition():
                return value
            time.sleep(0.01)
        raise AssertionError("it did not happen in time")

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.registrations: list[Any] = []
        self.devices: dict[str, str] = {}
        self.lists = 0
        self._server: Any = None

    @property
    def allocatable(self) -> int:
        return sum(health == messages.HEALTHY for health in self.devices.values())

    def start(self) -> None:
        """Start as the kubelet does: every socket in the folder goes first."""
        for socket in self.folder.iterdir():
            socket.unlink()
        self._server = grpc.server(ThreadPoolExecutor(2))
        handler = grpc.unary_unary_rpc_method_handler(
            self._register,
            request_deserializer=messages.RegisterRequest.FromString,
            response_serializer=lambda answer: answer.SerializeToString(),
        )
        handlers = grpc.method_handlers_generic_handler("v1beta1.Registration", {"Register": handler})
        self._server.add_generic_rpc_handlers((handlers,))
        self._server.add_insecure_port(f"unix://{self.folder / 'kubelet.sock'}")
        self._server.start()

    def stop(self) -> None:
        if self._server:
            self._server.stop(None).wait()
        (self.folder / "kubelet.sock").unlink(missing_ok=True)

    def allocate(self, *containers: list[str]) -> list[dict[str, str]]:
        """What each container gets in its environment. Raises grpc.RpcError."""
        request = messages.AllocateRequest(
            container_requests=[messages.ContainerAllocateRequest(devices_ids=ids) for ids in containers]
        )
        with self._channel() as channel:
            call = channel.unary_unary(
                "/v1beta1.DevicePlugin/Allocate",
                request_serializer=messages.AllocateRequest.SerializeToString,
                response_deserializer=messages.AllocateResponse.FromString,
            )
            return [dict(answer.envs) for answer in call(request, timeout=5).container_responses]

    def _channel(self) -> Any:
        return grpc.insecure_channel(f"unix://{self.folder / self.registrations[-1].endpoint}")

    def _register(self, request: Any, context: Any) -> Any:
        self.registrations.append(request)
        threading.Thread(target=self._follow, daemon=True).start()
        return messages.Empty()

    def _follow(self) -> None:
        with self._channel() as channel:
            call = channel.unary_stream(
                "/v1beta1.DevicePlugin/ListAndWatch",
                request_serializer=messages.Empty.SerializeToString,
                response_deserializer=messages.ListAndWatchResponse.FromString,
            )
            try:
                for answer in call(messages.Empty()):
                    self.lists += 1
                    self.devices = {device.ID: device.health for device in answer.devices}
            except grpc.RpcError:
                pass
            # A plugin that is gone leaves its devices behind, unhealthy.
            self.devices = dict.fromkeys(self.devices, messages.UNHEALTHY)


@pytest.fixture
def api() -> FakeApi:
    return FakeApi()


@pytest.fixture
def kubelet(tmp_path: Path) -> Iterator[FakeKubelet]:
    kubelet = FakeKubelet(tmp_path)
    kubelet.start()
    yield kubelet
    kubelet.stop()
