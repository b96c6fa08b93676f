// WorkerEndpoint: the route GET /api/worker, which connects a worker (docs/worker-protocol.md).
//
// Errors: 403 forbidden (an Origin; a role other than worker and admin), 426 unsupported (not an
// upgrade to a WebSocket of version 13), 400 input_invalid (no subprotocol, no key of a
// WebSocket). 401 is answered before. Threads: the loop's.
#pragma once

#include "api/authenticator.h"
#include "async/loop.h"
#include "net/http_request.h"
#include "net/http_server.h"
#include "routines/remote/remote_routines.h"

namespace ae::app {

bool is_worker_route(const net::HttpRequest& request);

// REQUIRES: an authenticated principal; `workers` outlives the connection. A revoked key ends the
// sessions of its workers. `authenticator`: nullptr for the socket of our own user.
void accept_worker(async::Loop& loop, routines::RemoteRoutines& workers,
                   api::Authenticator* authenticator, const net::HttpRequest& request,
                   net::Responder responder, const api::Principal& principal);

}  // namespace ae::app
