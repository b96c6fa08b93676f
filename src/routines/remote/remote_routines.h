// RemoteRoutines: code agents and functions of worker processes, by the worker protocol
// (docs/worker-protocol.md).
//
//   RemoteRoutines routines({.loop = loop, …}, {});
//   id = routines.accept(std::move(connection), "worker");  // a WorkerConnection, and its key
//   routines.on_text(id, text);                             // its events
//   routines.on_closed(id, code);
//
// A worker touches only what it was given: numbers belong to its session, a session is resumed
// with its id and by the same principal, and reports of lost calls come from the worker that had
// them.
// Threads: the loop's.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "async/alive.h"
#include "async/loop.h"
#include "routines/remote/earlier_calls.h"
#include "routines/remote/lost_calls.h"
#include "routines/remote/worker_connection.h"
#include "routines/remote/worker_messages.h"
#include "routines/routine.h"

namespace ae::routines {

class Session;

struct RemoteLimits {
  Duration heartbeat = std::chrono::seconds(2);
  Duration silent = std::chrono::seconds(15);
  Duration resume = std::chrono::seconds(20);
  Duration hello = std::chrono::seconds(10);  // from the connection to the hello
  std::size_t sessions_max = 256;             // and as many connections without a hello
  std::size_t sessions_of_principal_max = 64;
  std::size_t routines_max = 4'096, calls_max = 4'096;  // of a session, whatever its worker offers
};

// The definitions of a hello.
struct Definitions {
  std::string principal, worker;
  std::vector<WorkerAgent> agents;
  std::vector<WorkerTool> tools;
  std::int64_t process = 0;  // that made the connection; 0 = unknown
};
// Why an agent is not accepted; for the worker's author.
struct AgentFault {
  std::string name, version;
  Value faults;  // an array
};

// A worker and what it runs, for operators.
struct WorkerSummary {
  std::string worker, sdk;
  std::vector<WorkerAgent> agents;  // that were accepted
  std::vector<std::string> tools;
  std::size_t routines = 0, routines_max = 0, calls = 0, calls_max = 0;
  bool is_attached = true, is_draining = false;
  Instant since{};
};

// As in `code_workers` of GET /api/workers.
Value to_json(const WorkerSummary& summary);

class RemoteRoutines final : public RoutineProvider {
 public:
  struct Parts {  // borrowed
    async::Loop& loop;
    async::Clock& clock;  // of the store
    async::SteadyClock& steady_clock;
    async::RandomSource& random;
    EarlierCalls* earlier = nullptr;
    // Registers the agents and tools of a worker; those with faults are not offered. Empty: all are
    // accepted.
    std::function<std::vector<AgentFault>(const Definitions&)> on_hello = {};
    // The place of this version among those of its agent that are registered in the store, the
    // newest last; nullopt: it is not registered. Empty: none is.
    std::function<std::optional<std::size_t>(const AgentVersion&)> rank = {};
    // What this process offers has changed, or there is room again. May be empty.
    std::function<void()> on_change = {};
  };
  explicit RemoteRoutines(Parts parts, const RemoteLimits& limits = {});
  // REQUIRES: its routines are destroyed. Cuts the connections; calls have no outcome any more.
  ~RemoteRoutines() override;

  using ConnectionId = std::uint64_t;
  // A connection of this principal, whose role is worker or admin; "" = without a key. `process`:
  // Definitions::process.
  ConnectionId accept(std::unique_ptr<WorkerConnection> connection, std::string principal,
                      std::int64_t process = 0);
  // No effect for a connection that is gone.
  void on_text(ConnectionId connection, std::string_view text);
  void on_closed(ConnectionId connection, std::uint16_t code);
  // Its key was revoked: its sessions are gone.
  void revoke(std::string_view principal);

  // The process stops within this time: workers learn it, and nothing is started any more.
  void begin_closing(Duration within);
  // Closes all connections. REQUIRES: its routines are destroyed.
  void close();

  engine::OfferedCode offered(const engine::Plan& plan, std::uint32_t node,
                              std::string_view own) const override;
  std::optional<MissingFunction> missing_function(const engine::Plan& plan,
                                                  std::uint32_t node) const override;
  std::vector<AgentVersion> agent_versions() const override;
  std::unique_ptr<Routine> start(RoutineStart start) override;
  // Performs the calls of a registered tool that are not requests of a routine: of plans and loops.
  // nullptr: no worker has registered it in this process, or too many names were. It lives as long as this object; its calls
  // are not sent while no worker has it.
  tools::Tool* tool(std::string_view name) const;

  // As the message `drain` of this worker.
  void drain(std::string_view worker);
  // The process of this worker has ended: its sessions are gone.
  void end(std::string_view worker);
  std::vector<WorkerSummary> workers() const;
  std::size_t sessions() const { return sessions_.size(); }
  std::size_t connections() const { return connections_.size(); }
  std::size_t running_routines() const;

 private:
  class RegisteredTool;
  using SessionPtr = std::shared_ptr<Session>;  // shared with its routines
  struct Connection {
    std::unique_ptr<WorkerConnection> connection;
    std::string principal;
    std::int64_t process = 0;
    Duration accepted_at{};
    SessionPtr session;  // nullptr: before its hello
  };

  void on_first_frame(ConnectionId id, const WorkerFrame& frame);
  bool is_delayed(const std::string& principal, const Hello& hello);
  void begin(ConnectionId id, Hello hello);
  bool resume(ConnectionId id, const Hello& hello);
  Value welcome(const Session& session, bool is_resumed, std::vector<AgentFault> faults) const;
  void close_connection(ConnectionId id, std::uint16_t code, std::string_view reason);
  void lose(const SessionPtr& session, std::string_view why);
  ConnectionId connection_of(const Session& session) const;
  bool can_run(const Session& session, const engine::Plan& plan, std::uint32_t node,
               const std::string& version) const;
  void add_versions(const Session& session);
  std::pair<std::size_t, std::size_t> order_of(const AgentVersion& version) const;
  void on_versions_left(const Session& session);
  void schedule_sweep();
  void sweep();
  void changed();

  const Parts parts_;
  const RemoteLimits limits_;
  LostCalls lost_;
  std::map<ConnectionId, Connection> connections_;
  ConnectionId last_connection_ = 0;
  std::map<std::string, SessionPtr, std::less<>> sessions_;  // by id
  std::map<std::string, std::unique_ptr<RegisteredTool>, std::less<>> tools_;
  std::map<AgentVersion, std::size_t> order_;  // in which workers offered them first
  std::map<AgentVersion, Duration> left_at_;   // when the last worker with it left, or drained
  const Duration started_at_;
  // The number of the newest connection of each worker, by its principal and name.
  std::map<std::pair<std::string, std::string>, std::uint64_t> newest_connections_;
  bool is_closing_ = false;
  bool is_sweep_scheduled_ = false;
  Duration errors_forgotten_at_{};
  async::Alive alive_;
};

}  // namespace ae::routines
