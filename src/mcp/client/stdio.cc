#include "mcp/client/stdio.h"

#include <utility>

#include "json/json.h"
#include "mcp/client/server_message.h"

namespace ae::mcp::client {

Status StdioTransport::open(Callbacks callbacks) {
  callbacks_ = std::move(callbacks);
  AE_ASSIGN(server_, stdio_processes_.start(
                         definition_, folder_, used_,
                         {.on_output = [this](const std::string& bytes) { on_bytes(bytes); },
                          .on_exit =
                              [this](const tools::StdioProcessExit& ended) {
                                std::string why = ended.reason;
                                if (!ended.stderr_tail.empty()) why += ": " + ended.stderr_tail;
                                fail_connection(ended.has_started, why);
                              }}));
  return {};
}

void StdioTransport::close() {
  alive_.end();
  server_.reset();
}

void StdioTransport::reply_later(async::Done<Reply> reply, Reply what) {
  loop_.post([alive = alive_.watch(), reply = std::move(reply), what = std::move(what)]() mutable {
    if (alive) reply(std::move(what));
  });
}

void StdioTransport::send(OutgoingMessage outgoing, async::Done<Reply> reply) {
  if (!server_) {
    return reply_later(std::move(reply),
                       {.kind = Reply::Kind::not_sent, .text = "the server has exited"});
  }
  if (open_.size() >= kOpenMax) {
    return reply_later(std::move(reply), {.kind = Reply::Kind::not_sent,
                                          .text = "1,000 requests already wait for this server"});
  }
  std::string text = canonical(outgoing.message);
  if (text.size() > kMessageMax) {
    return reply_later(std::move(reply), {.kind = Reply::Kind::error,
                                          .code = kInvalidParams,
                                          .text = "a message has at most 4 MiB; nothing was sent"});
  }
  text += '\n';
  server_->write(std::move(text));
  if (outgoing.id == 0) return reply_later(std::move(reply), {.kind = Reply::Kind::result});
  open_.insert_or_assign(outgoing.id,
                         OpenRequest{.reply = std::move(reply), .is_call = !outgoing.name.empty()});
}

void StdioTransport::cancel_request(std::int64_t id) {
  // A line that could not be read may have been its answer; do not count it against another call.
  if (suspects_.contains(id) && unreadable_lines_ > 0) --unreadable_lines_;
  auto cancelled = extract_open(id);
  if (cancelled) reply_later(std::move(cancelled), {.kind = Reply::Kind::lost, .text = "given up"});
}

// Removes an open request. Empty: there was none.
async::Done<Reply> StdioTransport::extract_open(std::int64_t id) {
  auto found = open_.extract(id);
  if (found.empty()) return nullptr;
  suspects_.erase(id);
  if (suspects_.empty()) unreadable_lines_ = 0;
  return std::move(found.mapped().reply);
}

void StdioTransport::on_bytes(std::string_view bytes) {
  const async::Alive::Watch alive = alive_.watch();
  while (!bytes.empty() && alive && server_) {
    const std::size_t newline = std::min(bytes.find('\n'), bytes.size());
    if (partial_line_.size() + newline > kMessageMax) {
      server_.reset();
      return fail_connection(true, "the server sent a message of more than 4 MiB, and was stopped");
    }
    partial_line_ += bytes.substr(0, newline);
    if (newline == bytes.size()) return;
    bytes.remove_prefix(newline + 1);
    on_line(std::exchange(partial_line_, {}));
  }
}

void StdioTransport::on_line(std::string_view text) {
  auto messages = read_messages(text);
  if (!messages) return on_unreadable_line(text, messages.error());
  const async::Alive::Watch alive = alive_.watch();
  for (Message& message : *messages) {
    if (!alive) return;
    if (message.kind != Message::Kind::response) {
      callbacks_.on_message({.message = std::move(message)});
      continue;
    }
    if (!message.id.is_integer()) continue;
    const std::int64_t id = message.id.as_int();
    auto answered = extract_open(id);
    if (!answered) {  // cancelled, or never sent
      if (callbacks_.on_late_reply) callbacks_.on_late_reply(id);
      continue;
    }
    answered(to_reply(std::move(message)));
    if (alive) fail_suspects();
  }
}

void StdioTransport::on_unreadable_line(std::string_view text, const RpcError& error) {
  const std::size_t first = text.find_first_not_of(" \t\r");
  if (first == text.npos || (text[first] != '{' && text[first] != '[')) return;
  unreadable_why_ = describe_unreadable(error, tools::scrub(text, used()));
  const async::Alive::Watch alive = alive_.watch();
  bool is_known = false;
  for (const std::int64_t id : extract_response_ids(text)) {
    auto answered = alive ? extract_open(id) : nullptr;
    if (!answered) continue;
    is_known = true;
    answered({.kind = Reply::Kind::unreadable, .text = unreadable_why_});
  }
  if (!alive) return;
  if (!is_known) {
    for (const auto& [id, open] : open_) {
      if (open.is_call) suspects_.insert(id);
    }
    if (!suspects_.empty()) ++unreadable_lines_;
  }
  fail_suspects();
}

// As many unreadable lines as suspects: none of the suspects can still be answered.
void StdioTransport::fail_suspects() {
  if (suspects_.empty() || suspects_.size() > unreadable_lines_) return;
  const async::Alive::Watch alive = alive_.watch();
  for (const std::int64_t id : std::set(suspects_)) {
    auto suspect = alive ? extract_open(id) : nullptr;
    if (suspect) suspect({.kind = Reply::Kind::unreadable, .text = unreadable_why_});
  }
}

void StdioTransport::fail_connection(bool started, const std::string& why) {
  const async::Alive::Watch alive = alive_.watch();
  server_.reset();
  auto open = std::exchange(open_, {});
  suspects_.clear();
  unreadable_lines_ = 0;
  for (auto& [id, one] : open) {
    if (!alive) return;
    // A program that never ran has read nothing.
    one.reply({.kind = started ? Reply::Kind::lost : Reply::Kind::unreachable, .text = why});
  }
  if (alive && callbacks_.on_close) std::exchange(callbacks_.on_close, nullptr)(why);
}

}  // namespace ae::mcp::client
