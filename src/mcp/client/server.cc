// Server: the states of its connection:
//
//   idle ─a call, or list()─▶ connecting ─▶ listing ─▶ ready
//    ▲                            │            │   ▲      │ the tools have changed
//    └─── failed, or lost: backoff┴────────────┘   └──────┘
#include "mcp/client/server.h"

#include <fmt/core.h>

#include <algorithm>
#include <optional>

#include "async/boot_clock.h"
#include "base/http_status.h"
#include "json/json.h"
#include "log/field_names.h"
#include "mcp/client/classify_response.h"
#include "mcp/client/http.h"
#include "mcp/client/listing.h"
#include "mcp/client/server_calls.h"
#include "mcp/client/stdio.h"

namespace ae::mcp::client {
namespace {

Duration now() { return async::BootClock().since_start(); }

Outcome not_sent(std::string why) {
  return tools::make_outcome(OutcomeKind::failure, true, true, "not_sent", std::move(why));
}

// The keys of a call, sent outside of its arguments (SPEC §3).
Value meta_of(const tools::Call& call) {
  std::vector<Member> members = {{"aetheris/idempotency-key", call.external_key.text},
                                 {"aetheris/execution-key", call.key.text},
                                 {"aetheris/invocation-id", call.invocation.text},
                                 {"aetheris/try", static_cast<std::uint64_t>(call.try_no)}};
  auto [traceparent, tracestate] = call.trace_headers();
  if (!traceparent.empty()) members.emplace_back(field::traceparent, std::move(traceparent));
  if (!tracestate.empty()) members.emplace_back(field::tracestate, std::move(tracestate));
  return Value::object(std::move(members));
}

// The same request in each try, plus the answers to its last questions.
Value params_of(const tools::Call& call, const std::string& tool) {
  std::vector<Member> params{
      {"name", tool},
      {field::arguments, call.args.is_null() ? Value::object({}) : call.args},
      {"_meta", meta_of(call)}};
  if (!call.inputs.is_null()) {
    params.emplace_back("inputResponses", call.inputs["answers"]);
    if (const Value* state = call.inputs.find(field::state))
      params.emplace_back("requestState", *state);
  }
  return Value::object(std::move(params));
}

// Arguments that the schema mirrors in headers (`x-mcp-header`).
void collect_mirrored_headers(const Value& schema, const Value& args, std::size_t depth,
                              std::vector<std::pair<std::string, std::string>>& out) {
  if (depth > kMirrorDepthMax || !schema["properties"].is_object()) return;
  for (const auto& [key, property] : schema["properties"].members()) {
    const Value* value = args.find(key);
    if (value == nullptr || value->is_null()) continue;
    if (value->is_object()) collect_mirrored_headers(property, *value, depth + 1, out);
    const std::string header(property.text("x-mcp-header"));
    if (header.empty() || !net::is_header_name(header)) continue;
    if (value->is_string()) out.emplace_back(header, value->as_string());
    if (value->is_integer() || value->is_bool()) out.emplace_back(header, canonical(*value));
  }
}

// The server may still be running the call, and ask.
bool may_be_running(const Reply& reply) {
  return reply.kind == Reply::Kind::lost || reply.kind == Reply::Kind::unreadable ||
         (reply.kind == Reply::Kind::refused && !is_no_effect_status(reply.status));
}

}  // namespace

Server::Server(TransportFactory make_transport, async::Loop& loop, std::string version, Warn warn)
    : make_transport_(std::move(make_transport)),
      loop_(loop),
      version_(std::move(version)),
      warn_(std::move(warn)) {}

std::shared_ptr<Server> Server::make(TransportFactory make_transport, async::Loop& loop,
                                     std::string version, Warn warn) {
  return std::shared_ptr<Server>(
      new Server(std::move(make_transport), loop, std::move(version), std::move(warn)));
}

std::shared_ptr<Server> Server::make(Value connection, std::string folder, Dependencies deps) {
  TransportFactory make_transport = [connection, folder, deps]() -> std::unique_ptr<Transport> {
    if (connection.find("url") != nullptr) {
      return std::make_unique<HttpTransport>(deps.loop, deps.client, deps.secrets, connection);
    }
    return std::make_unique<StdioTransport>(deps.loop, deps.stdio_processes, deps.secrets,
                                            connection, folder);
  };
  return make(std::move(make_transport), deps.loop, deps.version, deps.warn);
}

Server::~Server() { close(); }

void Server::close() {
  drop_session();
  loop_.cancel(reconnect_timer_);
  loop_.cancel(idle_timer_);
  phase_ = Phase::idle;
  while (!in_flight_.empty()) {
    const auto& [key, flight] = *in_flight_.begin();
    const Key which = key;
    finish_call(which, flight.open ? tools::make_outcome(OutcomeKind::unknown, false, true,
                                                         "abandoned", "its tool was closed")
                                   : not_sent("its tool was closed"));
  }
  list_waiters_.clear();
}

// ---- the connection

void Server::set_idle_timeout(std::optional<Duration> timeout) {
  idle_timeout_ = timeout;
  watch_idle();
}

// Starts the idle timer if nothing uses the connection. A cancelled call does not: the server may
// never answer it.
void Server::watch_idle() {
  loop_.cancel(idle_timer_);
  if (!idle_timeout_ || !session_ || !is_idle()) return;
  idle_timer_ = loop_.after(*idle_timeout_, [weak = weak_from_this()] {
    const auto self = weak.lock();
    if (!self || !self->session_ || !self->is_idle()) return;
    self->session_->stop();
    self->drop_session();
    self->phase_ = Phase::idle;
    self->tools_.clear();
  });
}

void Server::ensure_connected() {
  if (phase_ != Phase::idle) return;
  const Duration wait = reconnect_at_ - now();
  if (wait.count() <= 0) return connect(false);
  loop_.cancel(reconnect_timer_);
  reconnect_timer_ = loop_.after(wait, [weak = weak_from_this()] {
    const auto self = weak.lock();
    if (self && self->phase_ == Phase::idle) self->connect(false);
  });
}

void Server::connect(bool legacy) {
  phase_ = Phase::connecting;
  answered_ = 0;
  const std::weak_ptr<Server> weak = weak_from_this();
  if (!legacy) {
    loop_.cancel(connect_timer_);
    connect_timer_ = loop_.after(kConnectMax, [weak] {
      if (const auto self = weak.lock()) {
        self->on_connect_failed({Code::unavailable, "the server was not ready within 60 s"});
      }
    });
  }
  session_ =
      Session::make(make_transport_(), {.loop = loop_, .version = version_, .legacy = legacy},
                    {.on_close =
                         [weak](const std::string& why) {
                           if (const auto self = weak.lock()) self->on_connection_lost(why);
                         },
                     .on_tools_changed =
                         [weak] {
                           const auto self = weak.lock();
                           if (!self) return;
                           self->list_is_stale_ = true;
                           if (self->phase_ == Phase::ready) self->list_tools();
                         },
                     .on_question =
                         [weak](const IncomingMessage& question) {
                           if (const auto self = weak.lock()) self->on_question(question);
                         },
                     .on_late_reply =
                         [weak](std::int64_t id) {
                           if (const auto self = weak.lock()) self->orphaned_.erase(id);
                         },
                     .on_request_cancelled =
                         [weak](const Value& id) {
                           const auto self = weak.lock();
                           if (!self) return;
                           const auto unset_request = [&id](OpenCall& open) {
                             if (open.question == id) open.question = Value();
                           };
                           for (const auto& [key, open] : self->suspended_) unset_request(*open);
                           for (const auto& [key, flight] : self->in_flight_) {
                             if (flight.open) unset_request(*flight.open);
                           }
                         }});
  watch_idle();
  session_->start([weak, legacy, session = std::weak_ptr(session_)](Status ready) {
    const auto self = weak.lock();
    const auto ours = session.lock();
    if (!self || !ours || self->session_ != ours) return;
    if (ready) return self->list_tools();
    if (!legacy && ours->is_lost_in_probe()) {
      self->drop_session();
      return self->connect(true);
    }
    self->on_connect_failed(ready.error());
  });
}

void Server::list_tools() {
  phase_ = Phase::listing;
  list_is_stale_ = false;
  session_->list(
      [weak = weak_from_this(), session = std::weak_ptr(session_)](Result<Session::ToolList> list) {
        const auto self = weak.lock();
        const auto ours = session.lock();
        if (self && ours && self->session_ == ours) self->on_listed(std::move(list));
      });
}

void Server::on_listed(Result<Session::ToolList> list) {
  if (!list) return on_connect_failed(list.error());
  if (list_is_stale_) return list_tools();
  loop_.cancel(connect_timer_);
  phase_ = Phase::ready;
  ready_at_ = now();
  tools_ = std::move(list->tools);
  rejected_ = list->rejected;
  for (auto& done : std::exchange(list_waiters_, {})) done(Session::ToolList{tools_, rejected_});
  watch_idle();
  std::vector<Key> waiting;
  for (const auto& [key, flight] : in_flight_) {
    if (!flight.open) waiting.push_back(key);
  }
  for (const Key& key : waiting) send(key);
}

void Server::drop_session() {
  loop_.cancel(connect_timer_);
  clear_suspended();
  orphaned_.clear();
  if (!session_) return;
  session_->close();
  // This may run inside a callback of the session, so destroy it later.
  loop_.post([session = std::move(session_)]() mutable { session.reset(); });
  session_.reset();
}

// The connection or the handshake failed: fails the waiting calls; the next call may connect again.
void Server::on_connect_failed(const Error& error) {
  const std::string why = tools::printable(
      tools::scrub(error.message, session_ ? session_->used() : std::vector<tools::UsedSecret>()),
      tools::LineBreaks::keep);
  on_connection_lost(why);
  for (auto& done : std::exchange(list_waiters_, {})) done(std::unexpected(Error{error.code, why}));
  const bool no_secret = error.code == Code::secret_missing || error.code == Code::forbidden;
  std::vector<Key> waiting;
  for (const auto& [key, flight] : in_flight_) {
    if (!flight.open) waiting.push_back(key);
  }
  for (const Key& key : waiting) {
    finish_call(key, tools::make_outcome(OutcomeKind::failure, true, !no_secret,
                                         no_secret ? "secret_missing" : "connect",
                                         fmt::format("the MCP server: {}", why)));
  }
}

void Server::on_connection_lost(const std::string& why) {
  // Lost during the probe: `start` reports it, and the next connection is legacy.
  if (session_ && session_->is_lost_in_probe()) return;
  const bool was_stable = phase_ == Phase::ready && now() - ready_at_ >= kStableAfter;
  const bool was_ready = phase_ == Phase::ready;
  failures_ = was_stable ? 0 : failures_ + 1;
  const std::uint32_t doublings = std::min(failures_ > 0 ? failures_ - 1 : 0, 12u);
  const Duration wait =
      failures_ == 0 ? Duration(0) : std::min(kBackoffMin * (1 << doublings), kBackoffMax);
  reconnect_at_ = now() + wait;
  drop_session();
  phase_ = Phase::idle;
  tools_.clear();
  // An HTTP exchange reports its own end; when a program ends, all its calls are lost.
  std::vector<Key> lost_calls;
  for (const auto& [key, flight] : in_flight_) {
    if (flight.open) lost_calls.push_back(key);
  }
  for (const Key& key : lost_calls) {
    finish_call(key, tools::make_outcome(OutcomeKind::unknown, false, true, "reset",
                                         fmt::format("the MCP server: {}", why)));
  }
  const bool has_waiters = !in_flight_.empty() || !list_waiters_.empty();
  if (was_ready && has_waiters) ensure_connected();
}

// ---- calls

void Server::list(async::Done<Result<Session::ToolList>> done) {
  if (phase_ == Phase::ready) {
    return loop_.post(
        [done = std::move(done), list = Session::ToolList{tools_, rejected_}]() mutable {
          done(std::move(list));
        });
  }
  list_waiters_.push_back(std::move(done));
  ensure_connected();
}

void Server::perform(tools::Permit permit, tools::Call call, const Tool& tool,
                     async::Done<Outcome> done) {
  const Key key{call.invocation, call.try_no};
  AE_CHECK(!in_flight_.contains(key), call.invocation.text);
  if (const auto suspended_try = suspended_try_of(call.inputs)) {
    if (call.last_sent_try <= *suspended_try) {
      return resume_call(std::move(permit), std::move(call), *suspended_try, std::move(done));
    }
    // The answers belong to a call that was dropped.
    release_suspended({call.invocation, *suspended_try}, "it is called again");
    call.inputs = Value();
  }
  const Duration send_within = call.send_within;
  InFlightCall& flight = in_flight_
                             .emplace(key, InFlightCall{.permit = std::move(permit),
                                                        .call = std::move(call),
                                                        .tool = tool,
                                                        .done = std::move(done),
                                                        .send_by = now() + send_within,
                                                        .started_at = now()})
                             .first->second;
  if (phase_ == Phase::ready) return send(key);
  flight.timer = loop_.after(send_within, [weak = weak_from_this(), key] {
    const auto self = weak.lock();
    if (self) self->finish_call(key, not_sent("the MCP server was not ready in time"));
  });
  ensure_connected();
}

// REQUIRES: not sent yet. Does nothing unless ready.
void Server::send(const Key& key) {
  const auto found = in_flight_.find(key);
  if (found == in_flight_.end() || phase_ != Phase::ready) return;
  InFlightCall& flight = found->second;
  if (flight.open) return;  // it waited twice: for the listing and for `listen`
  loop_.cancel(flight.timer);
  const Duration left = flight.send_by - now();
  if (left.count() <= 0) return finish_call(key, not_sent("the MCP server was not ready in time"));
  const auto tool = tools_.find(flight.tool.name);
  if (tool == tools_.end() || tool->second.text("digest") != flight.tool.digest) {
    const char* const change = tool == tools_.end()
                                   ? "no longer offers the tool"
                                   : "describes the tool differently than when it was accepted";
    const std::string what = fmt::format(
        "{}: inspect it with aetheris check FILE --diff, and accept it with --accept", change);
    if (warn_ && warned_tools_.insert(flight.tool.name).second) {
      warn_(flight.call.job,
            fmt::format("{} is not called: its MCP server {}", qualified_name(flight.tool), what));
    }
    return finish_call(key, tools::make_outcome(OutcomeKind::failure, true, false, "tool_changed",
                                                fmt::format("the MCP server {}", what)));
  }
  warned_tools_.erase(flight.tool.name);
  if (!flight.call.inputs.is_null() && !session_->modern()) {
    return finish_call(
        key,
        tools::make_outcome(OutcomeKind::failure, true, false, "tool_changed",
                            "the MCP server asked a question, and now uses a protocol revision in "
                            "which it cannot receive the answer"));
  }
  if (!session_->listen([weak = weak_from_this(), key] {
        if (const auto self = weak.lock()) self->send(key);
      })) {
    return;
  }
  const Value& args = flight.call.args;
  Session::RequestSpec spec{
      .method = "tools/call",
      .params = params_of(flight.call, flight.tool.name),
      .name = flight.tool.name,
      .try_no = flight.call.try_no,
      .send_within = left,
      // `start_timeout` enforces the deadline and knows the reason.
      .timeout = session_->modern() ? flight.call.timeout + kRequestTimeout : kOpenCallMax,
      .progress = std::move(flight.call.progress)};
  collect_mirrored_headers(tool->second["inputSchema"], args, 0, spec.header_params);
  if (canonical_exceeds(spec.params, kMessageMax - 4096)) {
    return finish_call(
        key, tools::make_outcome(OutcomeKind::failure, true, false, "request_invalid",
                                 "the arguments are larger than a message of MCP may be, 4 MiB"));
  }
  std::move(flight.permit).consume(key.first, key.second);
  const auto open = std::make_shared<OpenCall>(OpenCall{.tool = flight.tool, .key = key});
  flight.open = open;
  start_timeout(key);
  open->request = session_->send_request(
      std::move(spec),
      [weak = weak_from_this(), open, session = std::weak_ptr(session_)](const Reply& reply) {
        const auto self = weak.lock();
        if (!self) return;
        const bool ours = self->session_ && self->session_ == session.lock();
        if (ours && may_be_running(reply)) self->mark_orphaned(*open);
        self->on_reply(open, reply);
      });
}

// Starts the timeout of the try.
void Server::start_timeout(const Key& key) {
  InFlightCall& flight = in_flight_.at(key);
  flight.timer = loop_.after(flight.call.timeout, [weak = weak_from_this(), key] {
    const auto self = weak.lock();
    if (!self) return;
    const auto late = self->in_flight_.find(key);
    if (late == self->in_flight_.end() || !late->second.open || !self->session_) return;
    late->second.end_reason = InFlightCall::EndReason::timeout;
    self->cancel_request(late->second, "no answer in time");
  });
}

// Withdraws an answer that is being sent first: if it was not sent, the call is unchanged.
void Server::cancel_request(InFlightCall& flight, std::string_view why) {
  if (flight.answer_ticket != 0) return session_->withdraw_answer(flight.answer_ticket);
  mark_orphaned(*flight.open);
  session_->cancel_request(flight.open->request, why);
}

// From now on a question may come from this call, until it is answered.
void Server::mark_orphaned(OpenCall& open) {
  if (std::exchange(open.is_orphaned, true)) return;
  orphaned_.insert(orphaned_.size() < kOrphanedMax ? open.request : 0);
}

void Server::on_reply(const std::shared_ptr<OpenCall>& open, const Reply& reply) {
  if (!open->is_suspended) return finish_sent_call(open->key, reply);
  const auto found = suspended_.find(open->key);
  if (found != suspended_.end() && found->second == open) store_suspended_reply(*open, reply);
}

void Server::finish_sent_call(const Key& key, const Reply& reply) {
  const auto found = in_flight_.find(key);
  if (found == in_flight_.end()) return;
  const InFlightCall& flight = found->second;
  Outcome outcome =
      classify_response(reply, flight.tool.output_max,
                        session_ ? session_->used() : std::vector<tools::UsedSecret>());
  if (reply.kind == Reply::Kind::lost && flight.end_reason == InFlightCall::EndReason::timeout) {
    outcome =
        tools::make_outcome(OutcomeKind::timeout, false, true, "timeout",
                            fmt::format("no answer within {}", ae::to_text(flight.call.timeout)));
  } else if (reply.kind == Reply::Kind::lost &&
             flight.end_reason == InFlightCall::EndReason::abandoned) {
    outcome = tools::make_outcome(OutcomeKind::unknown, false, true, "abandoned",
                                  "given up after it was sent");
  }
  if (reply.kind == Reply::Kind::unreadable) {
    outcome.error_message =
        fmt::format("{}: {}", qualified_name(flight.tool), outcome.error_message);
  }
  // The server has forgotten the session (legacy HTTP): the call had no effect, and the next try
  // uses a new session. Only if this session has answered a call, so that a server that forgets
  // every session is not retried without limit.
  const bool forgotten = reply.status == 404 && session_ && !session_->modern();
  const bool must_reconnect = forgotten && answered_ > 0;
  if (must_reconnect)
    outcome = not_sent("the MCP server has forgotten the session: a new one is created");
  if (reply.kind == Reply::Kind::result) ++answered_;
  finish_call(key, std::move(outcome));
  if (must_reconnect && phase_ != Phase::idle) {
    ready_at_ = Duration(0);
    on_connection_lost("the session was forgotten");
  }
}

void Server::finish_call(const Key& key, Outcome outcome) {
  auto flight = in_flight_.extract(key);
  if (flight.empty()) return;
  InFlightCall& f = flight.mapped();
  loop_.cancel(f.timer);
  if (f.answer_ticket != 0 && session_) session_->withdraw_answer(f.answer_ticket);
  watch_idle();
  outcome.elapsed = now() - f.started_at;
  loop_.post([done = std::move(f.done), outcome = std::move(outcome)]() mutable {
    done(std::move(outcome));
  });
}

void Server::abandon(const InvocationId& invocation, std::uint32_t try_no) {
  const Key key{invocation, try_no};
  const auto found = in_flight_.find(key);
  if (found == in_flight_.end()) return release_suspended(key, "its job has ended");
  if (!found->second.open) return finish_call(key, not_sent("withdrawn in time"));
  found->second.end_reason = InFlightCall::EndReason::abandoned;
  if (session_) cancel_request(found->second, "the caller gave up");
}

}  // namespace ae::mcp::client
