"""The kubelet's device plugin API v1beta1, built from a table instead of generated code.

Source: k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1/api.proto. Fields that this plugin
neither sends nor reads (mounts, devices, CDI) are left out; protobuf skips them on the wire.
"""

from __future__ import annotations

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from google.protobuf.message import Message

PACKAGE = "v1beta1"
VERSION = "v1beta1"
HEALTHY = "Healthy"
UNHEALTHY = "Unhealthy"

_Field = descriptor_pb2.FieldDescriptorProto
_SCALARS = {"string": _Field.TYPE_STRING, "bool": _Field.TYPE_BOOL, "int64": _Field.TYPE_INT64}

# message: its fields as (name, number, type); "*" repeats, "map" is a map of strings
_MESSAGES: dict[str, list[tuple[str, int, str]]] = {
    "Empty": [],
    "DevicePluginOptions": [("pre_start_required", 1, "bool"), ("get_preferred_allocation_available", 2, "bool")],
    "RegisterRequest": [
        ("version", 1, "string"),
        ("endpoint", 2, "string"),
        ("resource_name", 3, "string"),
        ("options", 4, "DevicePluginOptions"),
    ],
    "NUMANode": [("ID", 1, "int64")],
    "TopologyInfo": [("nodes", 1, "NUMANode*")],
    "Device": [("ID", 1, "string"), ("health", 2, "string"), ("topology", 3, "TopologyInfo")],
    "ListAndWatchResponse": [("devices", 1, "Device*")],
    "ContainerAllocateRequest": [("devices_ids", 1, "string*")],
    "AllocateRequest": [("container_requests", 1, "ContainerAllocateRequest*")],
    "ContainerAllocateResponse": [("envs", 1, "map")],
    "AllocateResponse": [("container_responses", 1, "ContainerAllocateResponse*")],
    "PreStartContainerRequest": [("devices_ids", 1, "string*")],
    "PreStartContainerResponse": [],
}


def _add_field(message: descriptor_pb2.DescriptorProto, name: str, number: int, kind: str) -> None:
    field = message.field.add(name=name, number=number, label=_Field.LABEL_OPTIONAL)
    if kind == "map":
        entry = message.nested_type.add(name=f"{name.capitalize()}Entry")
        entry.options.map_entry = True
        _add_field(entry, "key", 1, "string")
        _add_field(entry, "value", 2, "string")
        field.label, field.type = _Field.LABEL_REPEATED, _Field.TYPE_MESSAGE
        field.type_name = f".{PACKAGE}.{message.name}.{entry.name}"
        return
    if kind.endswith("*"):
        kind, field.label = kind[:-1], _Field.LABEL_REPEATED
    if kind in _SCALARS:
        field.type = _SCALARS[kind]
    else:
        field.type, field.type_name = _Field.TYPE_MESSAGE, f".{PACKAGE}.{kind}"


def _build() -> dict[str, type[Message]]:
    file = descriptor_pb2.FileDescriptorProto(name="deviceplugin.proto", package=PACKAGE, syntax="proto3")
    for name, fields in _MESSAGES.items():
        message = file.message_type.add(name=name)
        for field in fields:
            _add_field(message, *field)
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return {
        name: message_factory.GetMessageClass(pool.FindMessageTypeByName(f"{PACKAGE}.{name}")) for name in _MESSAGES
    }


_CLASSES = _build()
Empty = _CLASSES["Empty"]
DevicePluginOptions = _CLASSES["DevicePluginOptions"]
RegisterRequest = _CLASSES["RegisterRequest"]
Device = _CLASSES["Device"]
NUMANode = _CLASSES["NUMANode"]
TopologyInfo = _CLASSES["TopologyInfo"]
ListAndWatchResponse = _CLASSES["ListAndWatchResponse"]
AllocateRequest = _CLASSES["AllocateRequest"]
ContainerAllocateRequest = _CLASSES["ContainerAllocateRequest"]
AllocateResponse = _CLASSES["AllocateResponse"]
ContainerAllocateResponse = _CLASSES["ContainerAllocateResponse"]
PreStartContainerRequest = _CLASSES["PreStartContainerRequest"]
PreStartContainerResponse = _CLASSES["PreStartContainerResponse"]
