// LiveStream: a job's events as server-sent events, with partial output between them.
//
// `id:` is the seq of an event, so Last-Event-ID resumes the log. Partial output (`said`) has no
// id; a client that connects in the middle gets it from its beginning. A slow client misses the
// rest of it and gets the result in the event: a model never waits for a client. The stream ends
// with the job. Decision: 0053-streaming.md. Threads: the loop's.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "api/api.h"
#include "api/authenticator.h"
#include "net/asio_loop.h"
#include "net/http_server.h"
#include "runtime/driver/output_hub.h"

namespace ae::routines {
class RemoteRoutines;
}

namespace ae::app {

class ClockControl;

// What streams need of their server. Borrowed; outlives every stream.
struct ServerContext {
  net::AsioLoop& loop;
  async::SteadyClock& steady;
  api::Api& api;
  runtime::OutputHub& output_hub;
  api::Authenticator* authenticator;            // nullptr: only our own user can connect
  std::function<bool()> has_capacity = {};      // for another large response
  routines::RemoteRoutines* workers = nullptr;  // nullptr: no worker connects to this process
  ClockControl* clock = nullptr;                // of the route /api/clock; nullptr: there is none
};

// Revalidates a principal before data is sent to it: its key may have been revoked.
using Revalidator = std::function<void(api::Authenticator::StatusCallback)>;
Revalidator make_revalidator(api::Authenticator* authenticator, const api::Principal& principal);

// Starts a stream of the events of the job that `request` names, after `last_event_id` ("": from
// the beginning). `slot` is kept while the stream is open. REQUIRES: an authenticated principal.
void stream_events(const ServerContext& context, api::ApiRequest request,
                   const std::string& last_event_id, net::Responder responder,
                   const api::Principal& principal, std::shared_ptr<void> slot);

}  // namespace ae::app
