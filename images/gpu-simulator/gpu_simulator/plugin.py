"""The gRPC side: devices offered to kubelet, its registration, its Allocate calls."""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grpc

from ansible_collections.tenantry.gpu.plugins.module_utils._hami import RESOURCE_COUNT, Card

from . import messages
from .lifecycle import AllocationError, Lifecycle

LOG = logging.getLogger(__name__)
SOCKET_NAME = "tenantry-gpu-simulator.sock"
KUBELET_SOCKET = "kubelet.sock"
SERVICE = f"{messages.PACKAGE}.DevicePlugin"
REGISTER = f"/{messages.PACKAGE}.Registration/Register"
REGISTER_TIMEOUT_S = 5
SERVER_THREADS = 4


def devices_of(cards: Sequence[Card]) -> list[Any]:
    """One device for each slot of each card, named <card's UUID>-<slot> as HAMi's plugin names them."""
    return [
        messages.Device(
            ID=f"{card.uuid}-{slot}",
            health=messages.HEALTHY if card.healthy else messages.UNHEALTHY,
        )
        for card in cards
        for slot in range(card.slots)
    ]


class DevicePlugin:
    """Serves nvidia.com/gpu to the kubelet whose sockets are in ``folder``.

    ``lifecycle`` completes allocations; without one, Allocate answers empty, as the upstream mock does.
    """

    def __init__(self, folder: Path, lifecycle: Lifecycle | None) -> None:
        self._folder = folder
        self._lifecycle = lifecycle
        self._allocating = threading.Lock()
        self._changed = threading.Condition()
        self._cards: tuple[Card, ...] = ()
        self._server: grpc.Server | None = None

    @property
    def socket(self) -> Path:
        return self._folder / SOCKET_NAME

    def offer(self, cards: Sequence[Card]) -> None:
        """Tell kubelet of these cards from now on."""
        with self._changed:
            if self._cards != tuple(cards):
                self._cards = tuple(cards)
                self._changed.notify_all()

    def start(self) -> None:
        """Serve and register with kubelet; again after it restarted (it then deleted our socket)."""
        self.stop()
        server = grpc.server(ThreadPoolExecutor(SERVER_THREADS), options=[("grpc.so_reuseport", 0)])
        server.add_generic_rpc_handlers((self._handlers(),))
        server.add_insecure_port(f"unix://{self.socket}")
        with self._changed:
            self._server = server
        server.start()
        self._register()
        LOG.info("registered %s with kubelet", RESOURCE_COUNT)

    def stop(self) -> None:
        """Stop serving; kubelet then counts no device of ours as allocatable."""
        with self._changed:
            server, self._server = self._server, None
            self._changed.notify_all()
        if server:
            server.stop(grace=0.5).wait()
        self.socket.unlink(missing_ok=True)

    def kubelet_identity(self) -> tuple[int, int] | None:
        """What tells one kubelet's socket from the next one's; None while there is none."""
        try:
            status = os.stat(self._folder / KUBELET_SOCKET)
        except FileNotFoundError:
            return None
        return status.st_ino, status.st_ctime_ns

    def _register(self) -> None:
        request = messages.RegisterRequest(
            version=messages.VERSION,
            endpoint=SOCKET_NAME,
            resource_name=RESOURCE_COUNT,
            options=messages.DevicePluginOptions(),
        )
        with grpc.insecure_channel(f"unix://{self._folder / KUBELET_SOCKET}") as channel:
            call = channel.unary_unary(
                REGISTER,
                request_serializer=messages.RegisterRequest.SerializeToString,
                response_deserializer=messages.Empty.FromString,
            )
            call(request, timeout=REGISTER_TIMEOUT_S, wait_for_ready=True)

    def _handlers(self) -> grpc.GenericRpcHandler:
        def unary(method: Callable[[Any, grpc.ServicerContext], Any], request: str) -> grpc.RpcMethodHandler:
            return grpc.unary_unary_rpc_method_handler(
                method,
                request_deserializer=getattr(messages, request).FromString,
                response_serializer=lambda answer: answer.SerializeToString(),
            )

        return grpc.method_handlers_generic_handler(
            SERVICE,
            {
                "GetDevicePluginOptions": unary(lambda request, context: messages.DevicePluginOptions(), "Empty"),
                "PreStartContainer": unary(
                    lambda request, context: messages.PreStartContainerResponse(), "PreStartContainerRequest"
                ),
                "Allocate": unary(self._allocate, "AllocateRequest"),
                "ListAndWatch": grpc.unary_stream_rpc_method_handler(
                    self._list_and_watch,
                    request_deserializer=messages.Empty.FromString,
                    response_serializer=lambda answer: answer.SerializeToString(),
                ),
            },
        )

    def _list_and_watch(self, request: Any, context: grpc.ServicerContext) -> Iterator[Any]:
        cards: tuple[Card, ...] | None
        with self._changed:
            server, cards = self._server, self._cards
        context.add_callback(self._wake)
        while cards is not None:
            yield messages.ListAndWatchResponse(devices=devices_of(cards))
            cards = self._cards_after(cards, lambda: context.is_active() and self._server is server)

    def _cards_after(self, cards: tuple[Card, ...], served: Callable[[], bool]) -> tuple[Card, ...] | None:
        """Wait for other cards than these; None when kubelet or our server has gone."""
        with self._changed:
            self._changed.wait_for(lambda: self._cards is not cards or not served())
            return self._cards if served() else None

    def _wake(self) -> None:
        with self._changed:
            self._changed.notify_all()

    def _allocate(self, request: Any, context: grpc.ServicerContext) -> Any:
        counts = [len(container.devices_ids) for container in request.container_requests]
        if self._lifecycle is None:
            environments: list[dict[str, str]] = [{} for _count in counts]
        else:
            # kubelet may call for several pods at once; which pod is meant stands in one lock a node.
            with self._allocating:
                try:
                    environments = self._lifecycle.allocate(counts)
                except AllocationError as error:
                    LOG.error("allocation failed: %s", error)
                    context.abort(grpc.StatusCode.UNKNOWN, str(error))
        return messages.AllocateResponse(
            container_responses=[messages.ContainerAllocateResponse(envs=envs) for envs in environments]
        )
