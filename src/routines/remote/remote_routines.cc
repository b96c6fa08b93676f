#include "routines/remote/remote_routines.h"

#include <fmt/core.h>

#include <algorithm>
#include <utility>

#include "json/json.h"
#include "log/field_names.h"
#include "routines/remote/server_messages.h"
#include "routines/remote/session.h"
#include "tools/output.h"

namespace ae::routines {
namespace {

constexpr std::size_t kToolNamesMax = 65'536;  // of all workers since the start
constexpr Duration kErrorsPeriod = std::chrono::minutes(1);

}  // namespace

// A tool that workers have registered, for calls without a routine.
class RemoteRoutines::RegisteredTool final : public tools::Tool {
 public:
  RegisteredTool(RemoteRoutines& provider, std::string name)
      : provider_(provider), name_(std::move(name)) {}

  void perform(tools::Permit permit, tools::Call call, async::Done<Outcome> done) override {
    SessionPtr best;
    for (const auto& [id, session] : provider_.sessions_) {
      if (!session->is_attached() || !session->offers_tool(name_)) continue;
      if (!best || session->calls().size() < best->calls().size()) best = session;
    }
    if (best) return best->calls().perform(std::move(permit), std::move(call), std::move(done), 0);
    provider_.parts_.loop.post([done = std::move(done), name = name_]() mutable {
      done(tools::make_outcome(OutcomeKind::failure, true, true, "not_sent",
                               fmt::format("no worker here has the tool \"{}\"", name)));
    });
  }
  void abandon(const InvocationId& invocation, std::uint32_t try_no) override {
    for (const auto& [id, session] : provider_.sessions_) {
      if (session->calls().abandon(invocation, try_no)) return;
    }
  }

 private:
  RemoteRoutines& provider_;
  const std::string name_;
};

RemoteRoutines::RemoteRoutines(Parts parts, const RemoteLimits& limits)
    : parts_(std::move(parts)), limits_(limits), lost_(parts_.loop, parts_.steady_clock) {}

RemoteRoutines::~RemoteRoutines() { AE_CHECK(running_routines() == 0, "routines are running"); }

std::size_t RemoteRoutines::running_routines() const {
  std::size_t running = 0;
  for (const auto& [id, session] : sessions_) running += session->routines();
  return running;
}

void RemoteRoutines::changed() {
  if (parts_.on_change) parts_.on_change();
}

// ---------------------------------------------------------------- connections

RemoteRoutines::ConnectionId RemoteRoutines::accept(std::unique_ptr<WorkerConnection> connection,
                                                    std::string principal) {
  const ConnectionId id = ++last_connection_;
  const auto without_hello = static_cast<std::size_t>(
      std::ranges::count_if(connections_, [](const auto& one) { return !one.second.session; }));
  connections_.emplace(id, Connection{.connection = std::move(connection),
                                      .principal = std::move(principal),
                                      .accepted_at = parts_.steady_clock.since_start(),
                                      .session = nullptr});
  if (is_closing_) {
    close_connection(id, close_code::kGoingAway, "the server stops");
  } else if (without_hello >= limits_.sessions_max) {
    close_connection(id, close_code::kPolicy, "too many connections without a hello");
  }
  schedule_sweep();
  return id;
}

// The object of a connection may be in a call: it is destroyed later.
void RemoteRoutines::close_connection(ConnectionId id, std::uint16_t code,
                                      std::string_view reason) {
  auto node = connections_.extract(id);
  if (node.empty()) return;
  Connection& one = node.mapped();
  one.connection->close(code, reason);
  if (one.session && !one.session->is_gone()) one.session->detach();
  parts_.loop.post([connection = std::move(one.connection)] {});
}

void RemoteRoutines::on_closed(ConnectionId id, std::uint16_t code) {
  const auto found = connections_.find(id);
  if (found == connections_.end()) return;
  const SessionPtr session = found->second.session;
  close_connection(id, code, "");
  // A worker that closes so has ended; it does not resume.
  if (session && code == close_code::kNormal) lose(session, "the worker ended");
}

void RemoteRoutines::on_text(ConnectionId id, std::string_view text) {
  const auto found = connections_.find(id);
  if (found == connections_.end()) return;
  const SessionPtr session = found->second.session;
  const auto frame = read_frame(text);
  if (!frame) {  // a resumed session would send it again
    close_connection(id, close_code::kPolicy, frame.error().message);
    if (session) lose(session, "the worker sent a text that is not a frame");
    return;
  }
  if (!session) return on_first_frame(id, *frame);
  const auto breach = session->on_frame(*frame);
  if (!breach) return;
  close_connection(id, breach->code, breach->reason);
  lose(session, breach->reason);
}

void RemoteRoutines::on_first_frame(ConnectionId id, const WorkerFrame& frame) {
  const auto messages = frame.messages.items();
  const bool is_hello = messages.size() == 1 && messages[0].text("type") == "hello";
  auto hello = is_hello ? read_hello(messages[0])
                        : fail(Code::input_invalid, "the first frame is not a hello");
  if (!hello) {
    const Value error = Value::object({{field::code, code_name(hello.error().code)},
                                       {"message", hello.error().message},
                                       {"type", field::error}});
    connections_.at(id).connection->send(frame_text(1, frame.number, canonical(error)));
    return close_connection(id, close_code::kPolicy, hello.error().message);
  }
  if (!hello->resume.empty() && resume(id, *hello)) return;
  begin(id, *std::move(hello));
}

// ---------------------------------------------------------------- sessions

Value RemoteRoutines::welcome(const Session& session, bool is_resumed,
                              std::vector<AgentFault> faults) const {
  std::vector<Value> agents;
  for (const WorkerAgent& agent : session.hello().agents) {
    std::vector<Member> members{{"name", agent.name}, {field::version, agent.version}};
    const auto fault = std::ranges::find_if(faults, [&](const AgentFault& one) {
      return one.name == agent.name && one.version == agent.version;
    });
    if (fault != faults.end()) members.emplace_back("faults", std::move(fault->faults));
    agents.push_back(Value::object(std::move(members)));
  }
  return Value::object({{"agents", Value::array(std::move(agents))},
                        {"limits", Value::object({{"heartbeat_ms", milliseconds(limits_.heartbeat)},
                                                  {"resume_ms", milliseconds(limits_.resume)},
                                                  {"silent_ms", milliseconds(limits_.silent)}})},
                        {"now", to_text(parts_.clock.now())},
                        {"resumed", is_resumed},
                        {"session", session.id()},
                        {"type", "welcome"}});
}

// The old connection may not be known to be lost.
bool RemoteRoutines::resume(ConnectionId id, const Hello& hello) {
  const auto found = sessions_.find(hello.resume);
  if (found == sessions_.end()) return false;
  const SessionPtr session = found->second;
  if (session->principal() != connections_.at(id).principal ||
      session->hello().worker != hello.worker) {
    return false;
  }
  if (!session->can_resume(hello.resume_ack)) {
    lose(session, "the worker acknowledged a frame that was never sent");
    return false;
  }
  if (session->is_attached()) {
    close_connection(connection_of(*session), close_code::kGoingAway, "the session was resumed");
  }
  connections_.at(id).session = session;
  session->attach(*connections_.at(id).connection, canonical(welcome(*session, true, {})), true);
  changed();
  return true;
}

void RemoteRoutines::begin(ConnectionId id, Hello hello) {
  Connection& connection = connections_.at(id);
  const auto of_principal = static_cast<std::size_t>(std::ranges::count_if(
      sessions_, [&](const auto& one) { return one.second->principal() == connection.principal; }));
  if (sessions_.size() >= limits_.sessions_max ||
      of_principal >= limits_.sessions_of_principal_max) {
    return close_connection(id, close_code::kPolicy, "too many workers are connected");
  }
  hello.routines_max = std::min(hello.routines_max, limits_.routines_max);
  hello.calls_max = std::min(hello.calls_max, limits_.calls_max);
  std::string session_id = "s-";
  for (int i = 0; i < 2; ++i) session_id += fmt::format("{:016x}", parts_.random.next());
  const std::string principal = connection.principal;
  std::vector<AgentFault> faults;
  if (parts_.on_hello) {
    faults = parts_.on_hello({.principal = principal,
                              .worker = hello.worker,
                              .agents = hello.agents,
                              .tools = hello.tools});
  }
  const auto session = std::make_shared<Session>(Session::Parts{.loop = parts_.loop,
                                                                .clock = parts_.clock,
                                                                .steady_clock = parts_.steady_clock,
                                                                .lost = lost_,
                                                                .earlier = parts_.earlier},
                                                 session_id, principal, std::move(hello));
  for (const AgentFault& fault : faults) session->remove_agent(fault.name, fault.version);
  if (!faults.empty()) session->remove_tools();
  for (const WorkerTool& tool : session->hello().tools) {
    if (!faults.empty()) break;
    if (tools_.contains(tool.name) || tools_.size() >= kToolNamesMax) continue;
    tools_.emplace(tool.name, std::make_unique<RegisteredTool>(*this, tool.name));
  }
  sessions_.emplace(session_id, session);
  connection.session = session;
  session->attach(*connection.connection, canonical(welcome(*session, false, std::move(faults))),
                  false);
  if (const auto& left = session->hello().left) {
    const std::string& worker = session->hello().worker;
    // A session of the same worker that was not resumed is gone.
    for (const auto& [other_id, other] : std::map(sessions_)) {
      if (other == session || other->principal() != principal || other->hello().worker != worker) {
        continue;
      }
      close_connection(connection_of(*other), close_code::kGoingAway, "the worker began another");
      lose(other, "the worker began another session");
    }
    lost_.on_left(principal, worker, *left);
    if (parts_.earlier != nullptr) parts_.earlier->on_left(principal, worker, *left);
  }
  changed();
}

RemoteRoutines::ConnectionId RemoteRoutines::connection_of(const Session& session) const {
  const auto found = std::ranges::find_if(
      connections_, [&](const auto& one) { return one.second.session.get() == &session; });
  return found == connections_.end() ? 0 : found->first;
}

void RemoteRoutines::lose(const SessionPtr& session, std::string_view why) {
  if (sessions_.erase(session->id()) == 0) return;
  session->lose(why);
  changed();
}

void RemoteRoutines::revoke(std::string_view principal) {
  for (const auto& [id, connection] : std::vector<std::pair<ConnectionId, std::string>>([&] {
         std::vector<std::pair<ConnectionId, std::string>> its;
         for (const auto& [one, of] : connections_) {
           if (of.principal == principal) its.emplace_back(one, of.principal);
         }
         return its;
       }())) {
    close_connection(id, close_code::kPolicy, "the key was revoked");
  }
  for (const auto& [id, session] : std::map(sessions_)) {
    if (session->principal() == principal) lose(session, "the key of the worker was revoked");
  }
}

void RemoteRoutines::begin_closing(Duration within) {
  is_closing_ = true;
  for (const auto& [id, session] : sessions_) {
    session->send(Value::object({{"type", "closing"}, {"within_ms", milliseconds(within)}}));
  }
}

void RemoteRoutines::close() {
  is_closing_ = true;
  std::vector<ConnectionId> open;
  open.reserve(connections_.size());
  for (const auto& [id, connection] : connections_) open.push_back(id);
  for (const ConnectionId id : open) {
    close_connection(id, close_code::kGoingAway, "the server stops");
  }
  for (const auto& [id, session] : std::map(sessions_)) lose(session, "the server stops");
}

// ---------------------------------------------------------------- time

void RemoteRoutines::schedule_sweep() {
  if (is_sweep_scheduled_ || (connections_.empty() && sessions_.empty() && lost_.size() == 0)) {
    return;
  }
  is_sweep_scheduled_ = true;
  parts_.loop.after(limits_.heartbeat / 2, [this, alive = alive_.watch()] {
    if (!alive) return;
    is_sweep_scheduled_ = false;
    sweep();
    schedule_sweep();
  });
}

void RemoteRoutines::sweep() {
  const Duration now = parts_.steady_clock.since_start();
  const bool forgets_errors = now - errors_forgotten_at_ >= kErrorsPeriod;
  if (forgets_errors) errors_forgotten_at_ = now;
  for (const auto& [id, session] : std::map(sessions_)) {
    if (forgets_errors) session->forget_errors();
    if (session->is_attached() && now - session->last_frame_at() >= limits_.silent) {
      close_connection(connection_of(*session), close_code::kGoingAway, "the worker was silent");
      changed();
    }
    if (const auto since = session->unacknowledged_since();
        since && session->is_attached() && now - *since >= limits_.silent) {
      constexpr std::string_view kWhy = "the worker acknowledges no frames";
      close_connection(connection_of(*session), close_code::kPolicy, kWhy);
      lose(session, kWhy);
      continue;
    }
    if (session->is_attached()) {
      session->acknowledge();
    } else if (now - session->detached_at() >= limits_.resume) {
      lose(session, "the worker was lost");
    }
  }
  std::vector<ConnectionId> mute;
  for (const auto& [id, one] : connections_) {
    if (!one.session && now - one.accepted_at >= limits_.hello) mute.push_back(id);
  }
  for (const ConnectionId id : mute) {
    close_connection(id, close_code::kPolicy, "there was no hello in time");
  }
  lost_.remove_old();
}

// ---------------------------------------------------------------- routines and tools

RemoteRoutines::SessionPtr RemoteRoutines::find_session(const engine::Plan& plan,
                                                        std::uint32_t node, bool with_room) const {
  const engine::CodeSpec& code = *plan.nodes[node].code;
  SessionPtr best;
  for (const auto& [id, session] : sessions_) {
    if (!session->offers_agent(code.agent, code.version)) continue;
    const bool has_functions = std::ranges::all_of(code.tools, [&](std::uint32_t index) {
      const engine::ToolPolicy& tool = plan.tools[index];
      return !tool.function || tool.is_stated_in_code() || session->offers_tool(tool.name);
    });
    if (!has_functions || (with_room && !session->has_room())) continue;
    if (!best || session->routines() < best->routines()) best = session;
  }
  return best;
}

bool RemoteRoutines::offers(const engine::Plan& plan, std::uint32_t node) const {
  return find_session(plan, node, false) != nullptr;
}

std::unique_ptr<Routine> RemoteRoutines::start(RoutineStart start) {
  if (is_closing_) return nullptr;
  const SessionPtr session = find_session(*start.plan, start.node, true);
  return session ? session->start(std::move(start)) : nullptr;
}

tools::Tool* RemoteRoutines::tool(std::string_view name) const {
  const auto found = tools_.find(name);
  return found == tools_.end() ? nullptr : found->second.get();
}

}  // namespace ae::routines
