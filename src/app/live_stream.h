// LiveStream: a job's events as they happen, as one stream, and between them what answers say as they come.
//
// `id:` is the seq of an event, so that Last-Event-ID resumes the log; what is said (`said`) has none, and is told from its
// beginning to whoever comes in the middle. Who reads too slowly misses the end of it and reads it in the event of the
// answer: nobody waits for a reader. The stream ends with the job. Decision: 0053-streaming.md. Threads: the loop's.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "api/api.h"
#include "api/authenticator.h"
#include "net/asio_loop.h"
#include "net/http_server.h"
#include "runtime/output_hub.h"

namespace ae::app {

// Where requests come in. All is borrowed, and outlives every stream.
struct ServerContext {
  net::AsioLoop& loop;
  async::SteadyClock& steady;
  api::Api& api;
  runtime::OutputHub& output_hub;
  api::Authenticator* authenticator;        // nullptr: only our own user comes in here
  std::function<bool()> has_capacity = {};  // for another large answer
};

// Who is let in once may be let out again: what is about to be told is told only if they still may hear it.
using Revalidator = std::function<void(api::Authenticator::StatusCallback)>;
Revalidator make_revalidator(api::Authenticator* authenticator, const api::Principal& principal);

// Begins a stream of the events of the job that `request` names, after `last_event_id` ("": from the beginning).
// `slot` is kept as long as the stream is open. REQUIRES: who asks has been let in.
void stream_events(const ServerContext& context, api::ApiRequest request,
                   const std::string& last_event_id, net::Responder responder,
                   const api::Principal& principal, std::shared_ptr<void> slot);

}  // namespace ae::app
