#include "routines/remote/remote_routines.h"

#include <fmt/core.h>

#include <algorithm>
#include <limits>
#include <set>
#include <utility>

#include "json/json.h"
#include "log/field_names.h"
#include "routines/missing_function.h"
#include "routines/remote/server_messages.h"
#include "routines/remote/session.h"
#include "tools/output.h"

namespace ae::routines {
namespace {

constexpr std::size_t kToolNamesMax = 65'536;  // of all workers since the start
constexpr std::size_t kVersionsMax = 65'536;   // of agents, since the start
constexpr std::size_t kWorkersMax = 65'536;    // whose newest connection is known
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
    : parts_(std::move(parts)),
      limits_(limits),
      lost_(parts_.loop, parts_.steady_clock),
      started_at_(parts_.steady_clock.since_start()) {}

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
                                                    std::string principal, std::int64_t process) {
  const ConnectionId id = ++last_connection_;
  const auto without_hello = static_cast<std::size_t>(
      std::ranges::count_if(connections_, [](const auto& one) { return !one.second.session; }));
  connections_.emplace(id, Connection{.connection = std::move(connection),
                                      .principal = std::move(principal),
                                      .process = process,
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
  if (is_delayed(connections_.at(id).principal, *hello)) {
    return close_connection(id, close_code::kPolicy, "a newer connection of this worker exists");
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

// A hello that was sent before the one of a newer connection: what it states is outdated.
bool RemoteRoutines::is_delayed(const std::string& principal, const Hello& hello) {
  if (hello.connection == 0) return false;
  const auto known = newest_connections_.find({principal, hello.worker});
  if (known != newest_connections_.end()) {
    if (hello.connection <= known->second) return true;
    known->second = hello.connection;
    return false;
  }
  if (newest_connections_.size() >= kWorkersMax) newest_connections_.clear();
  newest_connections_.emplace(std::pair(principal, hello.worker), hello.connection);
  return false;
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
                              .tools = hello.tools,
                              .process = connection.process});
  }
  const auto session = std::make_shared<Session>(Session::Parts{.loop = parts_.loop,
                                                                .clock = parts_.clock,
                                                                .steady_clock = parts_.steady_clock,
                                                                .lost = lost_,
                                                                .earlier = parts_.earlier},
                                                 session_id, principal, std::move(hello));
  for (const AgentFault& fault : faults) session->remove_agent({fault.name, fault.version});
  if (!faults.empty()) session->remove_tools();
  add_versions(*session);
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
  on_versions_left(*session);
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

void RemoteRoutines::add_versions(const Session& session) {
  for (const AgentVersion& one : session.agents()) {
    if (order_.size() < kVersionsMax) order_.emplace(one, order_.size());
  }
}

// Higher is newer. The order of the store holds over restarts; versions that are not registered
// (yet) are newer, in the order of their arrival.
std::pair<std::size_t, std::size_t> RemoteRoutines::order_of(const AgentVersion& version) const {
  const auto registered = parts_.rank ? parts_.rank(version) : std::nullopt;
  const auto arrived = order_.find(version);
  return {registered.value_or(std::numeric_limits<std::size_t>::max()),
          arrived == order_.end() ? 0 : arrived->second};
}

void RemoteRoutines::on_versions_left(const Session& session) {
  const Duration now = session.draining_since().value_or(parts_.steady_clock.since_start());
  for (const AgentVersion& one : session.agents()) {
    if (!order_.contains(one)) continue;
    Duration& left_at = left_at_[one];
    left_at = std::max(left_at, now);
  }
}

bool RemoteRoutines::can_run(const Session& session, const engine::Plan& plan, std::uint32_t node,
                             const std::string& version) const {
  return session.offers_agent({plan.nodes[node].code->agent, version}) &&
         first_missing_function(plan, node, [&](const std::string& name) {
           return session.offers_tool(name);
         }).empty();
}

std::optional<MissingFunction> RemoteRoutines::missing_function(const engine::Plan& plan,
                                                                std::uint32_t node) const {
  const std::string& agent = plan.nodes[node].code->agent;
  for (const auto& [id, session] : sessions_) {
    const auto& offered = session->agents();
    const auto version = std::ranges::find(offered, agent, &AgentVersion::agent);
    if (version == offered.end() || session->draining_since()) continue;
    std::string name = first_missing_function(
        plan, node, [&](const std::string& one) { return session->offers_tool(one); });
    if (!name.empty()) return MissingFunction{.version = version->version, .name = std::move(name)};
  }
  return std::nullopt;
}

// Sessions that may be resumed count: their workers may be back at once.
engine::OfferedCode RemoteRoutines::offered(const engine::Plan& plan, std::uint32_t node,
                                            std::string_view own) const {
  const std::string& agent = plan.nodes[node].code->agent;
  const Duration now = parts_.steady_clock.since_start();
  std::map<std::string, bool> is_attached;  // by version: has a worker with it a connection?
  Duration own_left_at = started_at_;
  if (const auto left = left_at_.find({agent, std::string(own)}); left != left_at_.end()) {
    own_left_at = left->second;
  }
  for (const auto& [id, session] : sessions_) {
    for (const AgentVersion& one : session->agents()) {
      if (one.agent != agent || !can_run(*session, plan, node, one.version)) continue;
      if (const auto drained = session->draining_since()) {
        if (one.version == own) own_left_at = std::max(own_left_at, *drained);
        continue;
      }
      is_attached[one.version] |= session->is_attached();
    }
  }
  std::vector<std::pair<std::pair<std::size_t, std::size_t>, std::string>> sorted;
  engine::OfferedCode offered{.versions = {}, .own_missing_for = now - own_left_at};
  for (const auto& [version, attached] : is_attached) {
    sorted.emplace_back(order_of({agent, version}), version);
    if (!attached) offered.away.push_back(version);
  }
  std::ranges::sort(sorted);
  for (auto& [order, version] : sorted) offered.versions.push_back(std::move(version));
  return offered;
}

std::vector<AgentVersion> RemoteRoutines::agent_versions() const {
  std::set<AgentVersion> all;
  for (const auto& [id, session] : sessions_) {
    if (!session->draining_since()) all.insert(session->agents().begin(), session->agents().end());
  }
  return {all.begin(), all.end()};
}

std::unique_ptr<Routine> RemoteRoutines::start(RoutineStart start) {
  if (is_closing_) return nullptr;
  SessionPtr best;
  for (const auto& [id, session] : sessions_) {
    if (!session->has_room() || !can_run(*session, *start.plan, start.node, start.version))
      continue;
    if (!best || session->routines() < best->routines()) best = session;
  }
  return best ? best->start(std::move(start)) : nullptr;
}

tools::Tool* RemoteRoutines::tool(std::string_view name) const {
  const auto found = tools_.find(name);
  return found == tools_.end() ? nullptr : found->second.get();
}

void RemoteRoutines::drain(std::string_view worker) {
  for (const auto& [id, session] : std::map(sessions_)) {
    if (session->hello().worker == worker) session->drain();
  }
}

void RemoteRoutines::end(std::string_view worker) {
  for (const auto& [id, session] : std::map(sessions_)) {
    if (session->hello().worker != worker) continue;
    close_connection(connection_of(*session), close_code::kGoingAway, "the worker ended");
    lose(session, "the worker ended");
  }
}

std::vector<WorkerSummary> RemoteRoutines::workers() const {
  std::vector<WorkerSummary> all;
  for (const auto& [id, session] : sessions_) {
    const Hello& hello = session->hello();
    WorkerSummary one{.worker = hello.worker,
                      .sdk = hello.sdk,
                      .routines = session->routines(),
                      .routines_max = hello.routines_max,
                      .calls = session->calls().size(),
                      .calls_max = hello.calls_max,
                      .is_attached = session->is_attached(),
                      .is_draining = session->draining_since().has_value(),
                      .since = session->begun_at()};
    for (const WorkerAgent& agent : hello.agents) {
      if (session->offers_agent({agent.name, agent.version})) one.agents.push_back(agent);
    }
    for (const WorkerTool& tool : hello.tools) {
      if (session->offers_tool(tool.name)) one.tools.push_back(tool.name);
    }
    all.push_back(std::move(one));
  }
  std::ranges::sort(all, {},
                    [](const WorkerSummary& one) { return std::pair(one.since, one.worker); });
  return all;
}

Value to_json(const WorkerSummary& summary) {
  std::vector<Value> agents;
  agents.reserve(summary.agents.size());
  for (const WorkerAgent& agent : summary.agents) {
    agents.push_back(Value::object({{"language", agent.definition["language"]},
                                    {"name", agent.name},
                                    {field::version, agent.version}}));
  }
  std::vector<Value> tools(summary.tools.begin(), summary.tools.end());
  return Value::object({{"agents", Value::array(std::move(agents))},
                        {"calls", std::uint64_t{summary.calls}},
                        {"calls_max", std::uint64_t{summary.calls_max}},
                        {"connected", summary.is_attached},
                        {"draining", summary.is_draining},
                        {"routines", std::uint64_t{summary.routines}},
                        {"routines_max", std::uint64_t{summary.routines_max}},
                        {"sdk", summary.sdk},
                        {"since", to_text(summary.since)},
                        {"tools", Value::array(std::move(tools))},
                        {"worker", summary.worker}});
}

}  // namespace ae::routines
