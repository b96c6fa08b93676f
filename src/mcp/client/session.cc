#include "mcp/client/session.h"

#include <fmt/core.h>

#include <algorithm>
#include <utility>

#include "json/json.h"
#include "log/field_names.h"
#include "mcp/client/listing.h"
#include "mcp/protocol/message.h"
#include "tools/output.h"
#include "tools/tool.h"

namespace ae::mcp::client {
namespace {

using Kind = Reply::Kind;

// Whether the list contains a supported modern (or legacy) revision.
bool has_revision(const Value& versions, bool modern) {
  if (!versions.is_array()) return false;
  return std::ranges::any_of(versions.items(), [&](const Value& one) {
    const auto revision = one.is_string() ? revision_from_text(one.as_string()) : std::nullopt;
    return revision && is_modern(*revision) == modern;
  });
}

bool is_modern_error(std::int64_t code) {
  return code == kHeaderMismatch || code == kMissingCapability || code == kUnsupportedVersion;
}

// Whether the server can receive another request.
bool has_response(const Reply& reply) {
  return reply.kind == Kind::result || reply.kind == Kind::error || reply.kind == Kind::refused;
}

std::string error_text(const Reply& reply) {
  if (reply.kind != Kind::error) return reply.text;
  const std::string why = reply.text.empty() ? "" : ": " + reply.text;
  return fmt::format("the server answered error {}{}", reply.code, why);
}

// The kinds of questions that users can answer.
Value client_capabilities() {
  return Value::object(
      {{"elicitation", Value::object({{"form", Value::object({})}, {"url", Value::object({})}})}});
}

// Unique per try, and exact as a JSON number.
std::int64_t make_request_id(std::uint32_t try_no, std::int64_t nth) {
  constexpr std::uint32_t kTriesApart = 1u << 20;
  return (static_cast<std::int64_t>((try_no - 1) % kTriesApart) << 32) + nth;
}

Status unavailable(std::string why) { return fail(Code::unavailable, std::move(why)); }

}  // namespace

Session::Session(std::unique_ptr<Transport> transport, Dependencies deps, Callbacks callbacks)
    : deps_(std::move(deps)), callbacks_(std::move(callbacks)), transport_(std::move(transport)) {}

std::shared_ptr<Session> Session::make(std::unique_ptr<Transport> transport, Dependencies deps,
                                       Callbacks callbacks) {
  return std::shared_ptr<Session>(
      new Session(std::move(transport), std::move(deps), std::move(callbacks)));
}

void Session::close() {
  phase_ = Phase::closed;
  deps_.loop.cancel(probe_timer_);
  callbacks_ = {};
  ready_ = nullptr;
  transport_->close();
}

// ---- how to talk

void Session::start(async::Done<Status> ready) {
  AE_CHECK(phase_ == Phase::fresh);
  ready_ = std::move(ready);
  const std::weak_ptr<Session> weak = weak_from_this();
  auto opened = transport_->open({.on_message =
                                      [weak](const IncomingMessage& incoming) {
                                        if (const auto self = weak.lock())
                                          self->on_message(incoming);
                                      },
                                  .on_close =
                                      [weak](const std::string& why) {
                                        const auto self = weak.lock();
                                        if (!self || self->phase_ == Phase::closed) return;
                                        self->is_lost_in_probe_ = self->phase_ == Phase::probing;
                                        self->finish_start(unavailable(why));
                                        if (self->callbacks_.on_close)
                                          self->callbacks_.on_close(why);
                                      },
                                  .on_late_reply =
                                      [weak](std::int64_t id) {
                                        const auto self = weak.lock();
                                        if (self && self->callbacks_.on_late_reply) {
                                          self->callbacks_.on_late_reply(id);
                                        }
                                      }});
  if (!opened) {
    return deps_.loop.post([weak, opened = std::move(opened)]() mutable {
      if (const auto self = weak.lock()) self->finish_start(std::move(opened));
    });
  }
  if (deps_.legacy) return initialize();
  phase_ = Phase::probing;
  modern_ = true;
  transport_->set_protocol_version(std::string(to_text(kNewest)));
  probe();
  if (!transport_->is_stdio()) return;
  // A program that starts slowly may not have read the probe yet; then both requests are pending.
  probe_timer_ = deps_.loop.after(kProbeTimeout, [weak] {
    if (const auto self = weak.lock(); self && self->phase_ == Phase::probing) self->initialize();
  });
}

void Session::probe() {
  send_request({.method = "server/discover", .params = Value::object({})},
               [weak = weak_from_this()](const Reply& reply) {
                 if (const auto self = weak.lock()) self->on_probe_reply(reply);
               });
}

void Session::on_probe_reply(const Reply& reply) {
  if (phase_ != Phase::probing && phase_ != Phase::initializing) return;
  if (reply.kind == Kind::result && has_revision(reply.value["supportedVersions"], true)) {
    const Value& capabilities = reply.value["capabilities"];
    has_tools_ = !capabilities.is_object() || capabilities.find("tools") != nullptr;
    modern_ = true;
    return on_ready(kNewest);
  }
  if (phase_ != Phase::probing) return;  // `initialize` has been sent already
  is_lost_in_probe_ = reply.kind == Kind::lost && transport_->is_stdio();
  if (!has_response(reply)) return finish_start(unavailable(reply.text));
  if (reply.status == 401 || reply.status == 403)
    return finish_start(unavailable(error_text(reply)));
  // It rejected a revision that it claims to support: retry once.
  if (reply.kind == Kind::error && reply.code == kUnsupportedVersion &&
      has_revision(reply.value["supported"], true) && !std::exchange(is_probed_again_, true)) {
    return probe();
  }
  probe_error_ = error_text(reply);
  const bool speaks_modern = reply.kind == Kind::error && is_modern_error(reply.code);
  const bool offers = reply.kind == Kind::result || reply.code == kUnsupportedVersion;
  const Value& versions =
      reply.kind == Kind::result ? reply.value["supportedVersions"] : reply.value["supported"];
  if ((speaks_modern || offers) && versions.is_array() && !has_revision(versions, false)) {
    return finish_start(
        unavailable("the server supports none of the MCP revisions that this client supports"));
  }
  if (speaks_modern && !versions.is_array()) return finish_start(unavailable(probe_error_));
  initialize();
}

void Session::initialize() {
  if (std::exchange(is_initialize_sent_, true)) return;
  phase_ = Phase::initializing;
  modern_ = false;
  deps_.loop.cancel(probe_timer_);
  transport_->set_protocol_version({});
  const Value params = Value::object({{"protocolVersion", to_text(kNewestLegacy)},
                                      {"capabilities", client_capabilities()},
                                      {"clientInfo", client_info()}});
  send_request({.method = "initialize", .params = params},
               [weak = weak_from_this()](const Reply& reply) {
                 if (const auto self = weak.lock()) self->on_initialize_reply(reply);
               });
}

void Session::on_initialize_reply(const Reply& reply) {
  if (phase_ != Phase::initializing) return;
  if (reply.kind != Kind::result) return finish_start(unavailable(error_text(reply)));
  const std::string version(reply.value.text("protocolVersion"));
  const auto revision = revision_from_text(version);
  if (!revision || is_modern(*revision)) {
    return finish_start(unavailable(fmt::format(
        "the server uses the revision \"{}\" of MCP, which this client does not support",
        tools::printable(version.substr(0, 32), tools::LineBreaks::escape))));
  }
  const Value& capabilities = reply.value["capabilities"];
  has_tools_ = !capabilities.is_object() || capabilities.find("tools") != nullptr;
  on_ready(*revision);
}

void Session::on_ready(Revision revision) {
  phase_ = Phase::open;
  deps_.loop.cancel(probe_timer_);
  // The header exists since 2025-06-18.
  transport_->set_protocol_version(
      std::string(revision >= Revision::r2025_06_18 ? to_text(revision) : ""));
  if (!modern_) send_notification("notifications/initialized", Value());
  finish_start({});
}

void Session::finish_start(Status status) {
  deps_.loop.cancel(probe_timer_);
  if (!status) phase_ = Phase::closed;
  if (ready_) std::exchange(ready_, nullptr)(std::move(status));
}

// ---- requests to the server

Value Session::client_info() const {
  return Value::object({{"name", "aetheris"}, {field::version, deps_.version}});
}

Value Session::client_meta() const {
  return Value::object({{std::string(kProtocolVersion), to_text(kNewest)},
                        {std::string(kClientInfo), client_info()},
                        {std::string(kClientCapabilities), client_capabilities()}});
}

std::int64_t Session::send_request(RequestSpec spec, async::Done<Reply> done) {
  const std::int64_t id = make_request_id(spec.try_no, ++last_id_);
  Value meta = spec.params["_meta"].is_object() ? spec.params["_meta"] : Value::object({});
  if (modern_) {
    const Value ours = client_meta();
    for (const auto& [key, value] : ours.members()) meta = meta.with(key, value);
  }
  if (spec.progress) {
    meta = meta.with("progressToken", id);
    progress_.insert_or_assign(id, std::move(spec.progress));
  }
  if (meta.size() > 0) spec.params = spec.params.with("_meta", std::move(meta));
  OutgoingMessage outgoing{.message = request(id, spec.method, spec.params),
                           .id = id,
                           .method = std::move(spec.method),
                           .modern = modern_,
                           .name = std::move(spec.name),
                           .params = std::move(spec.header_params),
                           .send_within = spec.send_within,
                           .timeout = spec.timeout};
  // HTTP exchanges have their own timeout; requests to a program need one here.
  async::TimerId timer = 0;
  const auto late = std::make_shared<std::string>();
  if (transport_->is_stdio()) {
    timer = deps_.loop.after(
        spec.timeout, [weak = weak_from_this(), id, late,
                       why = fmt::format("no answer to {} within {}", outgoing.method,
                                         ae::to_text(spec.timeout))] {
          if (const auto self = weak.lock(); self && self->phase_ != Phase::closed) {
            *late = why;
            self->transport_->cancel_request(id);
          }
        });
  }
  transport_->send(std::move(outgoing), [weak = weak_from_this(), id, timer, late,
                                         done = std::move(done)](Reply reply) mutable {
    const auto self = weak.lock();
    if (!self) return;
    self->deps_.loop.cancel(timer);
    self->progress_.erase(id);
    if (reply.kind == Kind::lost && !late->empty()) reply.text = *late;
    reply.text = tools::printable(tools::scrub(reply.text, self->used()), tools::LineBreaks::keep);
    if (self->phase_ != Phase::closed || reply.kind == Kind::lost) done(std::move(reply));
  });
  return id;
}

void Session::cancel_request(std::int64_t id, std::string_view why) {
  if (!transport_->cancel_notifies_server(modern_)) {
    send_notification("notifications/cancelled",
                      Value::object({{"requestId", id}, {field::reason, why}}));
  }
  transport_->cancel_request(id);
}

void Session::set_progress_callback(std::int64_t id, async::Done<Value> progress) {
  const auto found = progress_.find(id);
  if (found != progress_.end()) found->second = std::move(progress);
}

void Session::report_message(std::int64_t id, std::string_view what) {
  report_progress(id, Value::object({{"message", what}}));
}

void Session::report_progress(std::int64_t id, const Value& what) {
  const auto found = progress_.find(id);
  if (found == progress_.end() || !found->second) return;
  // Moved out while it runs: it may end the request.
  auto progress = std::exchange(found->second, nullptr);
  progress(what);
  if (const auto still = progress_.find(id); still != progress_.end() && !still->second) {
    still->second = std::move(progress);
  }
}

std::int64_t Session::send_answer(AnswerSpec spec) {
  const std::int64_t ticket = make_request_id(1, ++last_id_);
  transport_->send(
      {.message = response(spec.id, spec.result),
       .ticket = ticket,
       .send_within = spec.send_within,
       .timeout = spec.timeout},
      [weak = weak_from_this(), on_sent = std::move(spec.on_sent)](Reply reply) mutable {
        const auto self = weak.lock();
        if (self && self->phase_ != Phase::closed && on_sent) on_sent(std::move(reply));
      });
  return ticket;
}

void Session::send_notification(std::string_view method, Value params) {
  if (modern_) {
    if (params.is_null()) params = Value::object({});
    params = params.with("_meta", client_meta());
  }
  transport_->send({.message = notification(method, params),
                    .method = std::string(method),
                    .modern = modern_,
                    .timeout = kRequestTimeout},
                   [](const Reply&) {});
}

void Session::list(async::Done<Result<ToolList>> done) {
  auto listed = std::make_shared<ToolList>();
  if (!has_tools_) {
    return deps_.loop.post(
        [listed, done = std::move(done)]() mutable { done(std::move(*listed)); });
  }
  next_page(std::move(listed), {}, 1, std::move(done));
}

void Session::next_page(std::shared_ptr<ToolList> listed, std::string cursor, std::size_t pages,
                        async::Done<Result<ToolList>> done) {
  Value params = Value::object({});
  if (!cursor.empty()) params = params.with("cursor", cursor);
  send_request({.method = "tools/list", .params = std::move(params)}, [weak = weak_from_this(),
                                                                       listed, cursor, pages,
                                                                       done = std::move(done)](
                                                                          Reply reply) mutable {
    const auto self = weak.lock();
    if (!self) return;
    if (reply.kind != Kind::result || !reply.value["tools"].is_array()) {
      return done(fail(Code::unavailable, "tools/list: {}",
                       reply.kind == Kind::result ? "the answer has no tools" : error_text(reply)));
    }
    for (const Value& tool : reply.value["tools"].items()) {
      auto pin = pin_tool(tools::scrub_value(tool, self->used()));
      const bool by_header = self->modern_ && !self->transport_->is_stdio();
      const bool good = pin && is_valid_tool_name(pin->text("name")) &&
                        (!by_header || has_valid_header_mirrors((*pin)["inputSchema"]));
      if (!good) ++listed->rejected;
      if (good) listed->tools.insert_or_assign(std::string(pin->text("name")), *pin);
    }
    const std::string next(reply.value.text("nextCursor"));
    if (listed->tools.size() + listed->rejected > kToolsMax || pages > kPagesMax) {
      return done(fail(Code::unavailable, "tools/list: more than 1,000 tools, or pages"));
    }
    if (next.empty()) return done(std::move(*listed));
    if (next == cursor) {
      return done(fail(Code::unavailable, "tools/list: a page names itself as its next page"));
    }
    self->next_page(listed, next, pages + 1, std::move(done));
  });
}

// ---- requests and notifications of the server

void Session::on_message(const IncomingMessage& incoming) {
  const Message& message = incoming.message;
  if (phase_ == Phase::closed) return;
  if (message.kind == Message::Kind::notification) {
    if (message.method == "notifications/tools/list_changed" && callbacks_.on_tools_changed) {
      return callbacks_.on_tools_changed();
    }
    if (message.method == "notifications/cancelled" && callbacks_.on_request_cancelled) {
      return callbacks_.on_request_cancelled(message.params["requestId"]);
    }
    const Value& token = message.params["progressToken"];
    if (message.method != "notifications/progress" || !token.is_integer()) return;
    std::vector<Member> members;
    for (const char* key : {"progress", "total", "message"}) {
      if (const Value* value = message.params.find(key)) members.emplace_back(key, *value);
    }
    const Value clean = tools::scrub_value(Value::object(std::move(members)), used());
    if (!canonical_exceeds(clean, tools::kProgressMax)) report_progress(token.as_int(), clean);
    return;
  }
  if (message.method == "elicitation/create" && !modern_ && callbacks_.on_question)
    return callbacks_.on_question(incoming);
  Value reply;
  if (message.method == "ping") {
    reply = response(message.id, Value::object({}));
  } else if (message.method == "elicitation/create") {
    reply = response(message.id, Value::object({{"action", "decline"}}));
  } else {
    reply = error_response(
        {.code = kMethodNotFound, .message = "this client does not offer it", .id = message.id});
  }
  transport_->send({.message = std::move(reply), .timeout = kRequestTimeout}, [](const Reply&) {});
}

}  // namespace ae::mcp::client
