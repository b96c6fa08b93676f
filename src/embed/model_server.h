// ModelServer: the models of a test. A server on 127.0.0.1 that answers requests of Chat Completions
// with what the test states.
//
// Threads: one of its own, which also calls the functions of the test.
#pragma once

#include <cstddef>
#include <cstdint>
#include <expected>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <thread>
#include <utility>

#include <aetheris/testing.h>
#include "net/asio_loop.h"
#include "net/http_server.h"

namespace aetheris::testing {

class ModelServer {
 public:
  struct Callbacks {
    std::function<std::size_t(CallRecord)> on_call;  // before it is answered
    std::function<void(std::size_t, const std::expected<Value, Failure>&)> on_end;
  };
  ModelServer(const std::map<std::string, FakeModel>& models, Callbacks callbacks)
      : models_(models), callbacks_(std::move(callbacks)) {}
  ~ModelServer();
  Status begin();
  // The models, as an agents file has them. REQUIRES: begin.
  Value definitions() const;

 private:
  struct JobAnswers {
    std::size_t used = 0;  // of a list
    std::map<std::string, Value> by_key;
  };
  void answer(const ae::net::HttpRequest& request, ae::net::Responder responder);
  // Fails with what the test states wrongly.
  Result<Value> answer_of(const std::string& name, const ModelCall& call);
  Result<Value> next_of(const std::string& name, const std::vector<Value>& answers,
                        const ModelCall& call);

  const std::map<std::string, FakeModel>& models_;
  const Callbacks callbacks_;
  std::uint16_t port_ = 0;
  ae::net::AsioLoop loop_;
  std::unique_ptr<ae::net::HttpServer> server_;
  // Of the loop's thread:
  std::map<std::pair<std::string, std::string>, JobAnswers> lists_;  // by model and job
  std::thread thread_;
};

}  // namespace aetheris::testing
