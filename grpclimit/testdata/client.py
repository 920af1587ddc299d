# Calls the health check of a server four times, and prints each code. Of a
# denial it also prints the message and the trailer, as JSON.
import json
import sys

import grpc

with grpc.insecure_channel(sys.argv[1]) as channel:
    check = channel.unary_unary(
        "/grpc.health.v1.Health/Check",
        request_serializer=lambda message: message,
        response_deserializer=lambda message: message,
    )
    for _ in range(4):
        try:
            check(b"", timeout=30, wait_for_ready=True)
            print(json.dumps({"code": "OK"}))
        except grpc.RpcError as error:
            trailer = {
                key: value.hex() if isinstance(value, bytes) else value
                for key, value in error.trailing_metadata()
            }
            print(json.dumps({
                "code": error.code().name,
                "message": error.details(),
                "trailer": trailer,
                "header": [key for key, _ in error.initial_metadata() or ()],
            }))
