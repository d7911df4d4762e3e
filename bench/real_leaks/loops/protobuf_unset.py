from common import run
from google.protobuf.type_pb2 import Type

message = Type()
run(lambda: message.source_context.ByteSize(), 20000)
