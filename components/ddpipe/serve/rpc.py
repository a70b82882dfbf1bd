"""A model behind gRPC: Open Inference Protocol v2, next to HTTP and with the same bounds.

The messages are those that tritonclient publishes, so clients of KServe and Triton work. gRPC's own server
reads requests; each then passes the same `Work` as those over HTTP.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
from contextlib import asynccontextmanager
from typing import Any, TypeAlias

import grpc
import numpy as np
from tritonclient.grpc import service_pb2 as messages

from ddpipe.serve import protocol
from ddpipe.serve.work import LARGEST_BODY, RETRY_AFTER, Refused, Work

SERVICE = "inference.GRPCInferenceService"

LONGEST_CONNECTION = 600_000
"""Milliseconds; clients then connect again by themselves."""

SLOWEST_CALL = 60_000
"""Milliseconds after which a call is ended whose connection has lived that long."""

BESIDE = 16
"""Calls beyond the queue, about health and metadata; gRPC refuses further ones by itself."""

CODES = {
    400: grpc.StatusCode.INVALID_ARGUMENT,
    404: grpc.StatusCode.NOT_FOUND,
    503: grpc.StatusCode.UNAVAILABLE,
}
"""gRPC's status code for each of HTTP's."""

PUSHBACK = "grpc-retry-pushback-ms"
"""How a server says when to try again (gRPC proposal A6)."""

Message: TypeAlias = Any
"""A request or a response; tritonclient declares no types."""

Call: TypeAlias = Callable[[Message], Awaitable[Message]]
Context: TypeAlias = "grpc.aio.ServicerContext[Any, Any]"


@asynccontextmanager
async def listening(work: Work, address: str, grace: float) -> AsyncIterator[None]:
    """Answer calls until the end of the block."""
    server = grpc.aio.server(
        maximum_concurrent_rpcs=work.queue + BESIDE,
        options=[
            ("grpc.max_receive_message_length", LARGEST_BODY),
            ("grpc.max_send_message_length", LARGEST_BODY),
            ("grpc.max_connection_age_ms", LONGEST_CONNECTION),
            ("grpc.max_connection_age_grace_ms", SLOWEST_CALL),
            ("grpc.so_reuseport", 0),  # a second server at this port is a mistake
        ],
    )
    server.add_generic_rpc_handlers((_service(work),))
    server.add_insecure_port(address)
    await server.start()
    try:
        yield
    finally:
        await server.stop(grace)


def _service(work: Work) -> grpc.GenericRpcHandler:
    calls = _Calls(work)
    named: Mapping[str, Call] = {
        "ServerLive": calls.live,
        "ServerReady": calls.ready,
        "ServerMetadata": calls.server_metadata,
        "ModelReady": calls.model_ready,
        "ModelMetadata": calls.model_metadata,
        "ModelInfer": calls.infer,
    }
    handlers = {
        name: grpc.unary_unary_rpc_method_handler(
            _explained(call),
            request_deserializer=getattr(messages, f"{name}Request").FromString,
            response_serializer=getattr(messages, f"{name}Response").SerializeToString,
        )
        for name, call in named.items()
    }
    return grpc.method_handlers_generic_handler(SERVICE, handlers)


def _explained(call: Call) -> Callable[[Message, Context], Awaitable[Message]]:
    """End a refused call with gRPC's code for why."""

    async def explained(request: Message, context: Context) -> Message:
        try:
            return await call(request)
        except Refused as refused:
            code = CODES[refused.status]
            again = ((PUSHBACK, str(1000 * RETRY_AFTER)),) if code is grpc.StatusCode.UNAVAILABLE else ()
            await context.abort(code, str(refused), again)

    return explained


class _Calls:
    """The calls of the protocol."""

    def __init__(self, work: Work) -> None:
        self._work = work

    async def live(self, _request: Message) -> Message:
        return messages.ServerLiveResponse(live=True)

    async def ready(self, _request: Message) -> Message:
        return messages.ServerReadyResponse(ready=True)

    async def server_metadata(self, _request: Message) -> Message:
        found = protocol.server_metadata(self._work.name)
        return messages.ServerMetadataResponse(name=found["name"], version=found["version"])

    async def model_ready(self, request: Message) -> Message:
        self._work.check(request.name, request.version)
        return messages.ModelReadyResponse(ready=True)

    async def model_metadata(self, request: Message) -> Message:
        self._work.check(request.name, request.version)
        found = dict(protocol.metadata(self._work.model.signature, self._work.name, self._work.version))
        del found["parameters"]  # the message has no place for them
        return messages.ModelMetadataResponse(**found)

    async def infer(self, request: Message) -> Message:
        self._work.check(request.model_name, request.model_version)
        async with self._work.admitted():
            return await self._work.computed(self._inferred, request)

    def _inferred(self, request: Message) -> Message:
        work, signature = self._work, self._work.model.signature
        asked = protocol.of_tensors(request.id, list(_tensors(request)), signature)
        return _response(protocol.response(asked, work.predicted(asked.images), signature, work.name))


def _tensors(request: Message) -> Iterable[Mapping[str, Any]]:
    """The inputs; their data are in each, or follow all of them."""
    raw = list(request.raw_input_contents)
    for place, tensor in enumerate(request.inputs):
        contents = tensor.contents
        typed = protocol.joined(contents.bytes_contents) or list(contents.uint_contents)
        yield {
            "name": tensor.name,
            "datatype": tensor.datatype,
            "shape": list(tensor.shape),
            "data": raw[place] if place < len(raw) else typed,
        }


def _response(answer: Mapping[str, Any]) -> Message:
    message = messages.ModelInferResponse(model_name=answer["model_name"], id=answer.get("id", ""))
    for name, text in answer["parameters"].items():
        message.parameters[name].string_param = text
    for tensor in answer["outputs"]:
        message.outputs.add(name=tensor["name"], datatype=tensor["datatype"], shape=tensor["shape"])
        message.raw_output_contents.append(_bytes(tensor))
    return message


def _bytes(tensor: Mapping[str, Any]) -> bytes:
    if tensor["datatype"] == "BYTES":
        return protocol.joined([text.encode() for text in tensor["data"]])
    return np.asarray(tensor["data"], "<f8").tobytes()
