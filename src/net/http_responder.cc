// HttpResponse, Responder and HttpStream: the answer to a request, as its handler gives it.
#include <fmt/core.h>

#include <algorithm>
#include <utility>

#include "base/error.h"
#include "json/json.h"
#include "net/http_connection_internal.h"
#include "net/http_server.h"

namespace ae::net {

HttpResponse problem(int status, std::string_view code, std::string_view detail) {
  std::string title(code);
  std::ranges::replace(title, '_', ' ');
  HttpResponse response;
  response.status = status;
  response.content_type = "application/problem+json";
  response.body = canonical(Value::object({{"code", code},
                                           {"title", title},
                                           {"detail", detail},
                                           {"status", status},
                                           {"type", fmt::format("urn:aetheris:error:{}", code)}}));
  return response;
}

Responder::Responder(std::shared_ptr<HttpConnection> connection)
    : connection_(std::move(connection)) {}

Responder::~Responder() {
  if (connection_ && connection_->is_awaiting_answer()) {
    connection_->answer(
        problem(500, code_name(Code::unknown_outcome),
                "the server dropped the request; check the outcome before you retry it"));
  }
}

void Responder::answer(HttpResponse response) && {
  AE_CHECK(connection_, "answered twice");
  std::exchange(connection_, nullptr)->answer(std::move(response));
}

void Responder::read_body(HttpRequest head, HttpServer::Handler then) && {
  AE_CHECK(connection_, "answered twice");
  std::exchange(connection_, nullptr)->read_body(std::move(head), std::move(then));
}

HttpStream Responder::begin(HttpResponse head) && {
  AE_CHECK(connection_, "answered twice");
  connection_->begin(std::move(head));
  return HttpStream(std::exchange(connection_, nullptr));
}

HttpStream Responder::upgrade(HttpHeaders headers,
                              std::move_only_function<void(std::string_view bytes)> input) && {
  AE_CHECK(connection_, "answered twice");
  connection_->upgrade(std::move(headers), std::move(input));
  return HttpStream(std::exchange(connection_, nullptr));
}

void Responder::on_closed(async::Task task) { connection_->on_closed(std::move(task)); }

HttpStream::HttpStream(std::shared_ptr<HttpConnection> connection)
    : connection_(std::move(connection)) {}

HttpStream::~HttpStream() {
  if (!connection_) return;
  connection_->clear_callbacks();
  if (connection_->is_streaming()) connection_->close_now();
}

HttpStream& HttpStream::operator=(HttpStream&& o) noexcept {
  HttpStream old(std::exchange(connection_, std::exchange(o.connection_, nullptr)));
  return *this;
}

bool HttpStream::write(std::string_view bytes) {
  return connection_ == nullptr || connection_->write_stream(bytes);
}

void HttpStream::end() {
  if (!connection_) return;
  const auto connection = std::exchange(connection_, nullptr);
  connection->clear_callbacks();
  connection->end_stream();
}

bool HttpStream::closed() const { return !connection_ || !connection_->is_streaming(); }

bool HttpStream::has_capacity(std::size_t size) const {
  return closed() || connection_->has_capacity(size);
}

void HttpStream::on_drained(async::Task task) {
  if (connection_) connection_->on_drained(std::move(task));
}

void HttpStream::on_closed(async::Task task) {
  if (connection_) connection_->on_closed(std::move(task));
}

}  // namespace ae::net
