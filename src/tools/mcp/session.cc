#include "tools/mcp/session.h"

#include <algorithm>
#include <utility>

#include "json/json.h"
#include "tools/mcp/listing.h"
#include "tools/output.h"
#include "tools/tool.h"

namespace ae::tools::mcp {
namespace {

using How = Reply::How;

bool is_legacy(std::string_view version) {
  return std::ranges::find(kLegacy, version) != std::end(kLegacy);
}

// Does a list of revisions hold one that we speak in the new way? in the old way?
bool holds(const Value& versions, bool modern) {
  if (!versions.is_array()) return false;
  return std::ranges::any_of(versions.items(), [&](const Value& one) {
    return one.is_string() && (modern ? one.as_string() == kModern : is_legacy(one.as_string()));
  });
}

bool only_modern_says(std::int64_t code) {
  return code == kHeaderMismatch || code == kMissingCapability || code == kUnsupportedVersion;
}

// Would another word reach this server?
bool is_reached(const Reply& reply) {
  return reply.how == How::result || reply.how == How::error || reply.how == How::refused;
}

std::string said(const Reply& reply) {
  if (reply.how != How::error) return reply.text;
  return "the server answered error " + std::to_string(reply.code) +
         (reply.text.empty() ? "" : ": " + reply.text);
}

// What people can be asked.
Value elicitation() {
  return Value::object(
      {{"elicitation", Value::object({{"form", Value::object({})}, {"url", Value::object({})}})}});
}

// A number that JSON holds.
std::int64_t id_of(std::uint32_t try_no, std::int64_t nth) {
  constexpr std::uint32_t kTriesApart = 1u << 20;
  return (static_cast<std::int64_t>((try_no - 1) % kTriesApart) << 32) + nth;
}

Status unavailable(std::string why) { return fail(Code::unavailable, std::move(why)); }

}  // namespace

Session::Session(std::unique_ptr<Transport> transport, Needs needs, Ears ears)
    : needs_(std::move(needs)), ears_(std::move(ears)), transport_(std::move(transport)) {}

std::shared_ptr<Session> Session::make(std::unique_ptr<Transport> transport, Needs needs,
                                       Ears ears) {
  return std::shared_ptr<Session>(
      new Session(std::move(transport), std::move(needs), std::move(ears)));
}

void Session::close() {
  phase_ = Phase::closed;
  needs_.loop.forget(probe_timer_);
  ears_ = {};
  ready_ = nullptr;
  transport_->close();
}

// ---- how to talk

void Session::start(async::Done<Status> ready) {
  AE_CHECK(phase_ == Phase::fresh);
  ready_ = std::move(ready);
  const std::weak_ptr<Session> weak = weak_from_this();
  auto opened = transport_->open({.heard =
                                      [weak](const Message& message) {
                                        if (const auto self = weak.lock()) self->hear(message);
                                      },
                                  .lost =
                                      [weak](const std::string& why) {
                                        const auto self = weak.lock();
                                        if (!self || self->phase_ == Phase::closed) return;
                                        self->lost_in_probe_ = self->phase_ == Phase::probing;
                                        self->settle(unavailable(why));
                                        if (self->ears_.lost) self->ears_.lost(why);
                                      },
                                  .late =
                                      [weak](std::int64_t id) {
                                        const auto self = weak.lock();
                                        if (self && self->ears_.answers_late) {
                                          self->ears_.answers_late(id);
                                        }
                                      }});
  if (!opened) {
    return needs_.loop.post([weak, opened = std::move(opened)]() mutable {
      if (const auto self = weak.lock()) self->settle(std::move(opened));
    });
  }
  if (needs_.legacy) return initialize();
  phase_ = Phase::probing;
  modern_ = true;
  transport_->speak(std::string(kModern));
  probe();
  if (!transport_->is_stdio()) return;
  // A program that is slow to start has not heard the question yet: both are put to it then.
  probe_timer_ = needs_.loop.after(kProbeTime, [weak] {
    if (const auto self = weak.lock(); self && self->phase_ == Phase::probing) self->initialize();
  });
}

void Session::probe() {
  ask({.method = "server/discover", .params = Value::object({})},
      [weak = weak_from_this()](const Reply& reply) {
        if (const auto self = weak.lock()) self->probed(reply);
      });
}

void Session::probed(const Reply& reply) {
  if (phase_ != Phase::probing && phase_ != Phase::initializing) return;
  if (reply.how == How::result && holds(reply.value["supportedVersions"], true)) {
    const Value& capabilities = reply.value["capabilities"];
    has_tools_ = !capabilities.is_object() || capabilities.find("tools") != nullptr;
    modern_ = true;
    return opened(std::string(kModern));
  }
  if (phase_ != Phase::probing) return;  // it has been asked in the old way already
  lost_in_probe_ = reply.how == How::lost && transport_->is_stdio();
  if (!is_reached(reply)) return settle(unavailable(reply.text));
  if (reply.status == 401 || reply.status == 403) return settle(unavailable(said(reply)));
  // It refused the revision that it says it speaks: it is taken by its word, once.
  if (reply.how == How::error && reply.code == kUnsupportedVersion &&
      holds(reply.value["supported"], true) && !std::exchange(asked_again_, true)) {
    return probe();
  }
  why_not_ = said(reply);
  const bool speaks_modern = reply.how == How::error && only_modern_says(reply.code);
  const bool offers = reply.how == How::result || reply.code == kUnsupportedVersion;
  const Value& versions =
      reply.how == How::result ? reply.value["supportedVersions"] : reply.value["supported"];
  if ((speaks_modern || offers) && versions.is_array() && !holds(versions, false)) {
    return settle(
        unavailable("the server supports none of the MCP revisions that this client supports"));
  }
  if (speaks_modern && !versions.is_array()) return settle(unavailable(why_not_));
  initialize();
}

void Session::initialize() {
  if (std::exchange(asked_old_way_, true)) return;
  phase_ = Phase::initializing;
  modern_ = false;
  needs_.loop.forget(probe_timer_);
  transport_->speak({});
  const Value params = Value::object(
      {{"protocolVersion", kLegacy[0]},
       {"capabilities", elicitation()},
       {"clientInfo", Value::object({{"name", "aetheris"}, {"version", needs_.version}})}});
  ask({.method = "initialize", .params = params}, [weak = weak_from_this()](const Reply& reply) {
    if (const auto self = weak.lock()) self->initialized(reply);
  });
}

void Session::initialized(const Reply& reply) {
  if (phase_ != Phase::initializing) return;
  if (reply.how != How::result) return settle(unavailable(said(reply)));
  const std::string version(reply.value.text("protocolVersion"));
  if (!is_legacy(version)) {
    return settle(unavailable("the server uses the revision \"" +
                              printable(version.substr(0, 32), Lines::escape) +
                              "\" of MCP, which this client does not support"));
  }
  const Value& capabilities = reply.value["capabilities"];
  has_tools_ = !capabilities.is_object() || capabilities.find("tools") != nullptr;
  opened(version);
}

void Session::opened(std::string version) {
  phase_ = Phase::open;
  needs_.loop.forget(probe_timer_);
  // The header came with 2025-06-18.
  transport_->speak(version >= "2025-06-18" ? version : std::string());
  if (!modern_) tell("notifications/initialized", Value());
  settle({});
}

void Session::settle(Status status) {
  needs_.loop.forget(probe_timer_);
  if (!status) phase_ = Phase::closed;
  if (ready_) std::exchange(ready_, nullptr)(std::move(status));
}

// ---- what we ask

Value Session::meta_of_ours() const {
  return Value::object({{"io.modelcontextprotocol/protocolVersion", kModern},
                        {"io.modelcontextprotocol/clientInfo",
                         Value::object({{"name", "aetheris"}, {"version", needs_.version}})},
                        {"io.modelcontextprotocol/clientCapabilities", elicitation()}});
}

std::int64_t Session::ask(Ask ask, async::Done<Reply> done) {
  const std::int64_t id = id_of(ask.try_no, ++last_id_);
  Value meta = ask.params["_meta"].is_object() ? ask.params["_meta"] : Value::object({});
  if (modern_) {
    const Value ours = meta_of_ours();
    for (const auto& [key, value] : ours.members()) meta = meta.with(key, value);
  }
  if (ask.progress) {
    meta = meta.with("progressToken", id);
    progress_.insert_or_assign(id, std::move(ask.progress));
  }
  if (meta.size() > 0) ask.params = ask.params.with("_meta", std::move(meta));
  Post post{.message = request(id, ask.method, std::move(ask.params)),
            .id = id,
            .method = std::move(ask.method),
            .modern = modern_,
            .name = std::move(ask.name),
            .params = std::move(ask.header_params),
            .send_within = ask.send_within,
            .timeout = ask.timeout};
  // Nobody waits for ever: an HTTP exchange has its limit, a program that says nothing is given up.
  async::TimerId timer = 0;
  const auto late = std::make_shared<std::string>();
  if (transport_->is_stdio()) {
    timer = needs_.loop.after(
        ask.timeout, [weak = weak_from_this(), id, late,
                      why = "no answer to " + post.method + " within " + to_text(ask.timeout)] {
          if (const auto self = weak.lock(); self && self->phase_ != Phase::closed) {
            *late = why;
            self->transport_->give_up(id);
          }
        });
  }
  transport_->send(std::move(post), [weak = weak_from_this(), id, timer, late,
                                     done = std::move(done)](Reply reply) mutable {
    const auto self = weak.lock();
    if (!self) return;
    self->needs_.loop.forget(timer);
    self->progress_.erase(id);
    if (reply.how == How::lost && !late->empty()) reply.text = *late;
    reply.text = printable(scrub(reply.text, self->used()), Lines::keep);
    if (self->phase_ != Phase::closed || reply.how == How::lost) done(std::move(reply));
  });
  return id;
}

void Session::give_up(std::int64_t id, std::string_view why) {
  if (!transport_->give_up_tells(modern_)) {
    tell("notifications/cancelled", Value::object({{"requestId", id}, {"reason", why}}));
  }
  transport_->give_up(id);
}

void Session::follow(std::int64_t id, async::Done<Value> progress) {
  const auto found = progress_.find(id);
  if (found != progress_.end()) found->second = std::move(progress);
}

void Session::remark(std::int64_t id, std::string_view what) {
  report(id, Value::object({{"message", what}}));
}

void Session::report(std::int64_t id, const Value& what) {
  const auto found = progress_.find(id);
  if (found == progress_.end() || !found->second) return;
  // Not called where it lives: what it starts may end the request.
  auto progress = std::exchange(found->second, nullptr);
  progress(what);
  if (const auto still = progress_.find(id); still != progress_.end() && !still->second) {
    still->second = std::move(progress);
  }
}

std::int64_t Session::answer(Answer answer) {
  const std::int64_t ticket = id_of(1, ++last_id_);
  transport_->send({.message = mcp::answer(answer.id, std::move(answer.result)),
                    .ticket = ticket,
                    .send_within = answer.send_within,
                    .timeout = answer.timeout},
                   [weak = weak_from_this(), told = std::move(answer.told)](Reply reply) mutable {
                     const auto self = weak.lock();
                     if (self && self->phase_ != Phase::closed && told) told(std::move(reply));
                   });
  return ticket;
}

void Session::tell(std::string_view method, Value params) {
  if (modern_) {
    if (params.is_null()) params = Value::object({});
    params = params.with("_meta", meta_of_ours());
  }
  transport_->send({.message = notification(method, std::move(params)),
                    .method = std::string(method),
                    .modern = modern_,
                    .timeout = kAskTime},
                   [](const Reply&) {});
}

void Session::list(async::Done<Result<Listed>> done) {
  auto listed = std::make_shared<Listed>();
  if (!has_tools_) {
    return needs_.loop.post(
        [listed, done = std::move(done)]() mutable { done(std::move(*listed)); });
  }
  next_page(std::move(listed), {}, 1, std::move(done));
}

void Session::next_page(std::shared_ptr<Listed> listed, std::string cursor, std::size_t pages,
                        async::Done<Result<Listed>> done) {
  Value params = Value::object({});
  if (!cursor.empty()) params = params.with("cursor", cursor);
  ask({.method = "tools/list", .params = std::move(params)},
      [weak = weak_from_this(), listed, cursor, pages,
       done = std::move(done)](Reply reply) mutable {
        const auto self = weak.lock();
        if (!self) return;
        if (reply.how != How::result || !reply.value["tools"].is_array()) {
          return done(fail(Code::unavailable,
                           "tools/list: " + (reply.how == How::result ? "the answer has no tools"
                                                                      : said(reply))));
        }
        for (const Value& tool : reply.value["tools"].items()) {
          auto pin = pinned(scrub_value(tool, self->used()));
          const bool by_header = self->modern_ && !self->transport_->is_stdio();
          const bool good = pin && is_offered(pin->text("name")) &&
                            (!by_header || mirrors_well((*pin)["inputSchema"]));
          if (!good) ++listed->odd;
          if (good) listed->tools.insert_or_assign(std::string(pin->text("name")), *pin);
        }
        const std::string next(reply.value.text("nextCursor"));
        if (listed->tools.size() + listed->odd > kToolsMax || pages > kPagesMax) {
          return done(fail(Code::unavailable, "tools/list: more than 1,000 tools, or pages"));
        }
        if (next.empty()) return done(std::move(*listed));
        if (next == cursor) {
          return done(fail(Code::unavailable, "tools/list: a page names itself as its next page"));
        }
        self->next_page(listed, next, pages + 1, std::move(done));
      });
}

// ---- what the server asks, and tells

void Session::hear(const Message& message) {
  if (phase_ == Phase::closed) return;
  if (message.kind == Message::Kind::notification) {
    if (message.method == "notifications/tools/list_changed" && ears_.tools_changed) {
      return ears_.tools_changed();
    }
    if (message.method == "notifications/cancelled" && ears_.asks_no_more) {
      return ears_.asks_no_more(message.body["requestId"]);
    }
    const Value& token = message.body["progressToken"];
    if (message.method != "notifications/progress" || !token.is_integer()) return;
    std::vector<Member> said;
    for (const char* key : {"progress", "total", "message"}) {
      if (const Value* value = message.body.find(key)) said.emplace_back(key, *value);
    }
    const Value clean = scrub_value(Value::object(std::move(said)), used());
    if (!canonical_exceeds(clean, kProgressMax)) report(token.as_int(), clean);
    return;
  }
  if (message.method == "elicitation/create" && !modern_ && ears_.asks) return ears_.asks(message);
  Value reply;
  if (message.method == "ping") {
    reply = mcp::answer(message.id, Value::object({}));
  } else if (message.method == "elicitation/create") {
    reply = mcp::answer(message.id, Value::object({{"action", "decline"}}));
  } else {
    reply = refusal(message.id, kMethodNotFound, "this client does not offer it");
  }
  transport_->send({.message = std::move(reply), .timeout = kAskTime}, [](const Reply&) {});
}

}  // namespace ae::tools::mcp
