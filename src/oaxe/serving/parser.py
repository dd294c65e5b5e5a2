"""HTTP by httptools, in C: as strict as h11, and with bounds that h11 has by itself."""

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

LARGEST_HEAD = 2**16  # bytes
MOST_HEADERS = 256  # of a request
MOST_WAITING = 16  # requests that are sent before the one in front of them is answered


class HttpTools(HttpToolsProtocol):
    """What these methods raise is answered like any other bytes that are no HTTP request."""

    _in_head = False
    _received = 0  # bytes since the last request was complete

    def data_received(self, data: bytes) -> None:
        self._received += len(data)
        super().data_received(data)
        if self._in_head and self._received > LARGEST_HEAD and not self.transport.is_closing():
            self.send_400_response("the head is too large")

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._in_head = True

    def on_header(self, name: bytes, value: bytes) -> None:
        super().on_header(name, value)
        if len(self.headers) > MOST_HEADERS:
            raise ValueError("too many headers")

    def on_headers_complete(self) -> None:
        self._in_head = False
        if sum(name == b"host" for name, _ in self.headers) != 1:
            raise ValueError("a request has one host")
        if len(self.pipeline) >= MOST_WAITING:
            raise ValueError("too many requests at once")
        super().on_headers_complete()

    def on_message_complete(self) -> None:
        super().on_message_complete()
        self._received = 0
