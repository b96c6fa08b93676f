// HttpServer::Impl: the listeners, connections and limits of a server. Only for this module's .cc
// files.
// Threads: the loop's.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <unordered_set>
#include <vector>

#include "net/asio_loop.h"
#include "net/http_connection_internal.h"
#include "net/http_server.h"

namespace ae::net {

struct HttpServer::Impl {
  Impl(AsioLoop& loop, Handler handler, Options options);
  ~Impl();

  struct Listener;
  void listen_on(int fd, bool tcp, std::string path);
  void wait_for_clients(const std::shared_ptr<Listener>& listener);
  void accept_clients(const std::shared_ptr<Listener>& listener);
  void add_client(int fd, bool tcp);
  bool evict_idle();
  // `of`: the connection that sends the bytes and may already have unsent ones; nullptr = none.
  bool has_capacity(std::size_t size, const HttpConnection* of = nullptr);
  void warn_full(int error);
  void close_listeners();
  void schedule_sweep();
  void trim_memory();
  void on_freed(std::size_t size);
  void remove(const std::shared_ptr<HttpConnection>& connection);
  void finish_stop();
  void stop(Duration grace, async::Task done);

  AsioLoop& loop;
  const Handler handler;
  const Options options;
  const std::size_t connections_max;
  std::vector<std::shared_ptr<Listener>> listeners;                 // shared with their async waits
  std::unordered_set<std::shared_ptr<HttpConnection>> connections;  // shared with the handlers
  std::optional<async::TimerId> sweep, grace_end;
  const std::shared_ptr<std::size_t> body_bytes = std::make_shared<std::size_t>(0);  // BodyQuota
  // Since memory was last returned to the system.
  std::size_t body_bytes_peak = 0, bytes_freed = 0, connections_peak = 0, out_peak = 0;
  std::size_t out_bytes = 0;              // HttpConnection::buffered_bytes() of all
  std::size_t evicted = 0, rejected = 0;  // since the last warning
  std::int64_t next_warning_at = 0;
  bool stopping = false;
  async::Task stopped;
};

}  // namespace ae::net
