// The life of a connection, as its server sees it:
//
//   idle ─a call, or who asks for its tools─▶ connecting ─▶ listing ─▶ ready
//    ▲                                           │            │   ▲      │ the tools have changed
//    └────── failed, or lost: later again ───────┴────────────┘   └──────┘
#include "tools/mcp/server.h"

#include <algorithm>
#include <optional>

#include "async/boot_clock.h"
#include "base/http_status.h"
#include "json/json.h"
#include "tools/mcp/http.h"
#include "tools/mcp/judge.h"
#include "tools/mcp/listing.h"
#include "tools/mcp/server_flight.h"
#include "tools/mcp/stdio.h"

namespace ae::tools::mcp {
namespace {

Duration now() { return async::BootClock().since_start(); }

Outcome not_sent(std::string why) {
  return ended(OutcomeKind::failure, true, true, "not_sent", std::move(why));
}

// What a call says of itself, outside of its arguments (SPEC §3).
Value meta_of(const Call& call) {
  std::vector<Member> members = {{"aetheris/idempotency-key", call.external_key.text},
                                 {"aetheris/execution-key", call.key.text},
                                 {"aetheris/invocation-id", call.invocation.text},
                                 {"aetheris/try", static_cast<std::uint64_t>(call.try_no)}};
  if (!call.traceparent.empty()) members.emplace_back("traceparent", call.traceparent);
  if (!call.tracestate.empty()) members.emplace_back("tracestate", call.tracestate);
  return Value::object(std::move(members));
}

// The same request again and again, each time with what people have answered to what it asked last.
Value params_of(const Call& call, const std::string& tool) {
  std::vector<Member> params{{"name", tool},
                             {"arguments", call.args.is_null() ? Value::object({}) : call.args},
                             {"_meta", meta_of(call)}};
  if (!call.inputs.is_null()) {
    params.emplace_back("inputResponses", call.inputs["answers"]);
    if (const Value* state = call.inputs.find("state")) params.emplace_back("requestState", *state);
  }
  return Value::object(std::move(params));
}

// Arguments that the schema wants to see in headers as well (`x-mcp-header`).
void mirrored(const Value& schema, const Value& args, std::size_t depth,
              std::vector<std::pair<std::string, std::string>>& out) {
  if (depth > kMirrorDepthMax || !schema["properties"].is_object()) return;
  for (const auto& [key, property] : schema["properties"].members()) {
    const Value* value = args.find(key);
    if (value == nullptr || value->is_null()) continue;
    if (value->is_object()) mirrored(property, *value, depth + 1, out);
    const std::string header(property.text("x-mcp-header"));
    if (header.empty() || !net::is_header_name(header)) continue;
    if (value->is_string()) out.emplace_back(header, value->as_string());
    if (value->is_integer() || value->is_bool()) out.emplace_back(header, canonical(*value));
  }
}

// The server may still be at it, and ask.
bool may_go_on(const Reply& reply) {
  return reply.how == Reply::How::lost || reply.how == Reply::How::unreadable ||
         (reply.how == Reply::How::refused && !says_nothing_happened(reply.status));
}

}  // namespace

Server::Server(Reach reach, async::Loop& loop, std::string version, Warn warn)
    : reach_(std::move(reach)), loop_(loop), version_(std::move(version)), warn_(std::move(warn)) {}

std::shared_ptr<Server> Server::make(Reach reach, async::Loop& loop, std::string version,
                                     Warn warn) {
  return std::shared_ptr<Server>(
      new Server(std::move(reach), loop, std::move(version), std::move(warn)));
}

std::shared_ptr<Server> Server::make(Value connection, std::string folder, Needs needs) {
  Reach reach = [connection, folder, needs]() -> std::unique_ptr<Transport> {
    if (connection.find("url") != nullptr) {
      return std::make_unique<HttpTransport>(needs.loop, needs.client, needs.secrets, connection);
    }
    return std::make_unique<StdioTransport>(needs.loop, needs.companions, needs.secrets, connection,
                                            folder);
  };
  return make(std::move(reach), needs.loop, needs.version, needs.warn);
}

Server::~Server() { close(); }

void Server::close() {
  drop_session();
  loop_.forget(again_timer_);
  loop_.forget(idle_timer_);
  phase_ = Phase::idle;
  while (!flights_.empty()) {
    const auto& [key, flight] = *flights_.begin();
    const Key which = key;
    answer(which, flight.open
                      ? ended(OutcomeKind::unknown, false, true, "abandoned", "its tool was closed")
                      : not_sent("its tool was closed"));
  }
  askers_.clear();
}

// ---- the connection

void Server::set_idle_timeout(std::optional<Duration> timeout) {
  idle_timeout_ = timeout;
  watch_idle();
}

// Starts the idle time when nothing uses the connection. A call that was given up does not: its server may never answer it.
void Server::watch_idle() {
  loop_.forget(idle_timer_);
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

void Server::need() {
  if (phase_ != Phase::idle) return;
  const Duration wait = not_before_ - now();
  if (wait.count() <= 0) return connect(false);
  loop_.forget(again_timer_);
  again_timer_ = loop_.after(wait, [weak = weak_from_this()] {
    const auto self = weak.lock();
    if (self && self->phase_ == Phase::idle) self->connect(false);
  });
}

void Server::connect(bool legacy) {
  phase_ = Phase::connecting;
  answered_ = 0;
  const std::weak_ptr<Server> weak = weak_from_this();
  if (!legacy) {
    loop_.forget(connect_timer_);
    connect_timer_ = loop_.after(kConnectMax, [weak] {
      if (const auto self = weak.lock()) {
        self->failed({Code::unavailable, "the server was not ready within 60 s"});
      }
    });
  }
  session_ = Session::make(reach_(), {.loop = loop_, .version = version_, .legacy = legacy},
                           {.lost =
                                [weak](const std::string& why) {
                                  if (const auto self = weak.lock()) self->lost(why);
                                },
                            .tools_changed =
                                [weak] {
                                  const auto self = weak.lock();
                                  if (!self) return;
                                  self->relist_ = true;
                                  if (self->phase_ == Phase::ready) self->list_tools();
                                },
                            .asks =
                                [weak](const Message& request) {
                                  if (const auto self = weak.lock()) self->asks(request);
                                },
                            .answers_late =
                                [weak](std::int64_t id) {
                                  if (const auto self = weak.lock()) self->astray_.erase(id);
                                },
                            .asks_no_more =
                                [weak](const Value& id) {
                                  const auto self = weak.lock();
                                  if (!self) return;
                                  const auto forget = [&id](Open& open) {
                                    if (open.question == id) open.question = Value();
                                  };
                                  for (const auto& [key, open] : self->kept_) forget(*open);
                                  for (const auto& [key, flight] : self->flights_) {
                                    if (flight.open) forget(*flight.open);
                                  }
                                }});
  watch_idle();
  session_->start([weak, legacy, session = std::weak_ptr(session_)](Status ready) {
    const auto self = weak.lock();
    const auto ours = session.lock();
    if (!self || !ours || self->session_ != ours) return;
    if (ready) return self->list_tools();
    if (!legacy && ours->lost_in_probe()) {
      self->drop_session();
      return self->connect(true);
    }
    self->failed(ready.error());
  });
}

void Server::list_tools() {
  phase_ = Phase::listing;
  relist_ = false;
  session_->list(
      [weak = weak_from_this(), session = std::weak_ptr(session_)](Result<Session::Listed> listed) {
        const auto self = weak.lock();
        const auto ours = session.lock();
        if (self && ours && self->session_ == ours) self->listed(std::move(listed));
      });
}

void Server::listed(Result<Session::Listed> listed) {
  if (!listed) return failed(listed.error());
  if (relist_) return list_tools();
  loop_.forget(connect_timer_);
  phase_ = Phase::ready;
  opened_at_ = now();
  tools_ = std::move(listed->tools);
  odd_ = listed->odd;
  for (auto& done : std::exchange(askers_, {})) done(Session::Listed{tools_, odd_});
  watch_idle();
  std::vector<Key> waiting;
  for (const auto& [key, flight] : flights_) {
    if (!flight.open) waiting.push_back(key);
  }
  for (const Key& key : waiting) send(key);
}

void Server::drop_session() {
  loop_.forget(connect_timer_);
  forget_kept();
  astray_.clear();
  if (!session_) return;
  session_->close();
  // It may be its own callback that we are in.
  loop_.post([session = std::move(session_)]() mutable { session.reset(); });
  session_.reset();
}

// It cannot be reached, or not be talked to: whoever waits hears it, and whoever comes next may try again.
void Server::failed(const Error& error) {
  const std::string why = printable(
      scrub(error.message, session_ ? session_->used() : std::vector<UsedSecret>()), Lines::keep);
  lost(why);
  for (auto& done : std::exchange(askers_, {})) done(std::unexpected(Error{error.code, why}));
  const bool no_secret = error.code == Code::secret_missing || error.code == Code::forbidden;
  std::vector<Key> waiting;
  for (const auto& [key, flight] : flights_) {
    if (!flight.open) waiting.push_back(key);
  }
  for (const Key& key : waiting) {
    answer(key, ended(OutcomeKind::failure, true, !no_secret,
                      no_secret ? "secret_missing" : "connect", "the MCP server: " + why));
  }
}

void Server::lost(const std::string& why) {
  // Over our first word: it is asked in the old way next.
  if (session_ && session_->lost_in_probe()) return;
  const bool stayed = phase_ == Phase::ready && now() - opened_at_ >= kStayed;
  const bool was_ready = phase_ == Phase::ready;
  failures_ = stayed ? 0 : failures_ + 1;
  const std::uint32_t doublings = std::min(failures_ > 0 ? failures_ - 1 : 0, 12u);
  const Duration wait =
      failures_ == 0 ? Duration(0) : std::min(kBackoffLeast * (1 << doublings), kBackoffMost);
  not_before_ = now() + wait;
  drop_session();
  phase_ = Phase::idle;
  tools_.clear();
  // An HTTP exchange has its own end; a program takes all with it.
  std::vector<Key> gone;
  for (const auto& [key, flight] : flights_) {
    if (flight.open) gone.push_back(key);
  }
  for (const Key& key : gone) {
    answer(key, ended(OutcomeKind::unknown, false, true, "reset", "the MCP server: " + why));
  }
  const bool somebody_waits = !flights_.empty() || !askers_.empty();
  if (was_ready && somebody_waits) need();
}

// ---- calls

void Server::list(async::Done<Result<Session::Listed>> done) {
  if (phase_ == Phase::ready) {
    return loop_.post([done = std::move(done), listed = Session::Listed{tools_, odd_}]() mutable {
      done(std::move(listed));
    });
  }
  askers_.push_back(std::move(done));
  need();
}

void Server::perform(Permit permit, Call call, const Tool& tool, async::Done<Outcome> done) {
  const Key key{call.invocation, call.try_no};
  AE_CHECK(!flights_.contains(key), call.invocation.text);
  if (const auto asked_at = asked_at_of(call.inputs)) {
    if (call.sent_before <= *asked_at) {
      return go_on(std::move(permit), std::move(call), *asked_at, std::move(done));
    }
    // They were for a call that nobody waits for any more.
    let_go({call.invocation, *asked_at}, "it is called again");
    call.inputs = Value();
  }
  const Duration send_within = call.send_within;
  Flight& flight = flights_
                       .emplace(key, Flight{.permit = std::move(permit),
                                            .call = std::move(call),
                                            .tool = tool,
                                            .done = std::move(done),
                                            .send_by = now() + send_within,
                                            .began = now()})
                       .first->second;
  if (phase_ == Phase::ready) return send(key);
  flight.timer = loop_.after(send_within, [weak = weak_from_this(), key] {
    const auto self = weak.lock();
    if (self) self->answer(key, not_sent("the MCP server was not ready in time"));
  });
  need();
}

// REQUIRES: ready; not sent yet.
void Server::send(const Key& key) {
  const auto found = flights_.find(key);
  if (found == flights_.end() || phase_ != Phase::ready) return;
  Flight& flight = found->second;
  if (flight.open) return;  // it waited twice: for the list, and to be heard
  loop_.forget(flight.timer);
  const Duration left = flight.send_by - now();
  if (left.count() <= 0) return answer(key, not_sent("the MCP server was not ready in time"));
  const auto listed = tools_.find(flight.tool.name);
  if (listed == tools_.end() || listed->second.text("digest") != flight.tool.digest) {
    const std::string what =
        std::string(listed != tools_.end()
                        ? "describes the tool differently than when it was accepted"
                        : "no longer offers the tool") +
        ": inspect it with aetheris check FILE --diff, and accept it with --accept";
    if (warn_ && changed_.insert(flight.tool.name).second) {
      warn_(flight.call.job, named(flight.tool) + " is not called: its MCP server " + what);
    }
    return answer(
        key, ended(OutcomeKind::failure, true, false, "tool_changed", "the MCP server " + what));
  }
  changed_.erase(flight.tool.name);
  if (!flight.call.inputs.is_null() && !session_->modern()) {
    return answer(key, ended(OutcomeKind::failure, true, false, "tool_changed",
                             "the MCP server asked a question, and now uses a protocol revision in "
                             "which it cannot receive the answer"));
  }
  if (!session_->listen([weak = weak_from_this(), key] {
        if (const auto self = weak.lock()) self->send(key);
      })) {
    return;
  }
  const Value& args = flight.call.args;
  Session::Ask ask{.method = "tools/call",
                   .params = params_of(flight.call, flight.tool.name),
                   .name = flight.tool.name,
                   .try_no = flight.call.try_no,
                   .send_within = left,
                   // Who looks at the clock is `await`, which knows why it gives up.
                   .timeout = session_->modern() ? flight.call.timeout + kAskTime : kOpenMost,
                   .progress = std::move(flight.call.progress)};
  mirrored(listed->second["inputSchema"], args, 0, ask.header_params);
  if (canonical_exceeds(ask.params, kMessageMax - 4096)) {
    return answer(key, ended(OutcomeKind::failure, true, false, "request_invalid",
                             "the arguments are larger than a message of MCP may be, 4 MiB"));
  }
  std::move(flight.permit).use(key.first, key.second);
  const auto open = std::make_shared<Open>(Open{.tool = flight.tool, .key = key});
  flight.open = open;
  await(key);
  open->request = session_->ask(
      std::move(ask),
      [weak = weak_from_this(), open, session = std::weak_ptr(session_)](const Reply& reply) {
        const auto self = weak.lock();
        if (!self) return;
        const bool ours = self->session_ && self->session_ == session.lock();
        if (ours && may_go_on(reply)) self->astray(*open);
        self->replied(open, reply);
      });
}

// Its time begins.
void Server::await(const Key& key) {
  Flight& flight = flights_.at(key);
  flight.timer = loop_.after(flight.call.timeout, [weak = weak_from_this(), key] {
    const auto self = weak.lock();
    if (!self) return;
    const auto late = self->flights_.find(key);
    if (late == self->flights_.end() || !late->second.open || !self->session_) return;
    late->second.ends = Flight::Ends::timeout;
    self->give_up(late->second, "no answer in time");
  });
}

// An answer that is on its way first: when it was never told, the call is as it was.
void Server::give_up(Flight& flight, std::string_view why) {
  if (flight.telling != 0) return session_->withdraw(flight.telling);
  astray(*flight.open);
  session_->give_up(flight.open->request, why);
}

// From now on a question may be of this call, until it is answered after all.
void Server::astray(Open& open) {
  if (std::exchange(open.astray, true)) return;
  astray_.insert(astray_.size() < kAstrayMax ? open.request : 0);
}

void Server::replied(const std::shared_ptr<Open>& open, const Reply& reply) {
  if (!open->kept) return sent_is_over(open->key, reply);
  const auto found = kept_.find(open->key);
  if (found != kept_.end() && found->second == open) keep_reply(*open, reply);
}

void Server::sent_is_over(const Key& key, const Reply& reply) {
  const auto found = flights_.find(key);
  if (found == flights_.end()) return;
  const Flight& flight = found->second;
  Outcome outcome =
      judge(reply, flight.tool.output_max, session_ ? session_->used() : std::vector<UsedSecret>());
  if (reply.how == Reply::How::lost && flight.ends == Flight::Ends::timeout) {
    outcome = ended(OutcomeKind::timeout, false, true, "timeout",
                    "no answer within " + to_text(flight.call.timeout));
  } else if (reply.how == Reply::How::lost && flight.ends == Flight::Ends::abandoned) {
    outcome = ended(OutcomeKind::unknown, false, true, "abandoned", "given up after it was sent");
  }
  if (reply.how == Reply::How::unreadable) {
    outcome.error_message = named(flight.tool) + ": " + outcome.error_message;
  }
  // A session that the server has forgotten (legacy HTTP): nothing was done, and a new one is made for the next try. Once:
  // who forgets a new session at once is not asked for ever.
  const bool forgotten = reply.status == 404 && session_ && !session_->modern();
  const bool again = forgotten && answered_ > 0;
  if (again) outcome = not_sent("the MCP server has forgotten the session: a new one is created");
  if (reply.how == Reply::How::result) ++answered_;
  answer(key, std::move(outcome));
  if (again && phase_ != Phase::idle) {
    opened_at_ = Duration(0);
    lost("the session was forgotten");
  }
}

void Server::answer(const Key& key, Outcome outcome) {
  auto flight = flights_.extract(key);
  if (flight.empty()) return;
  Flight& f = flight.mapped();
  loop_.forget(f.timer);
  if (f.telling != 0 && session_) session_->withdraw(f.telling);
  watch_idle();
  outcome.took = now() - f.began;
  loop_.post([done = std::move(f.done), outcome = std::move(outcome)]() mutable {
    done(std::move(outcome));
  });
}

void Server::abandon(const InvocationId& invocation, std::uint32_t try_no) {
  const Key key{invocation, try_no};
  const auto found = flights_.find(key);
  if (found == flights_.end()) return let_go(key, "its job has ended");
  if (!found->second.open) return answer(key, not_sent("withdrawn in time"));
  found->second.ends = Flight::Ends::abandoned;
  if (session_) give_up(found->second, "the caller gave up");
}

}  // namespace ae::tools::mcp
