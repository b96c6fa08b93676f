"""search_engine: that of the research example of the Python SDK."""
import itertools
import json

from shared.server import Scripted, test_server


def search_engine(fails_each=None):
    """A server that finds two hits for each query; of so many requests the last one fails. Yields its URL."""
    count = itertools.count(1)

    class Search(Scripted):
        def do_GET(self):
            is_refused = fails_each is not None and next(count) % fails_each == 0
            body = b"try again" if is_refused else json.dumps({"hits": [self.path, "more"]}).encode()
            self.send_head(503 if is_refused else 200, size=len(body))
            self.wfile.write(body)
    return test_server(Search)
