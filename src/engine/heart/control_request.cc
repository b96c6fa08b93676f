// Control requests as JSON: the members of each kind, and how they are stored.
#include "engine/heart/control_request.h"

#include <concepts>
#include <type_traits>
#include <utility>
#include <vector>

#include "base/hash.h"
#include "json/json.h"
#include "log/field_names.h"
#include "log/seal.h"
#include "plan/plan_node.h"

namespace ae::engine {
namespace {

template <class T, class Body>
concept Is = std::same_as<std::remove_cvref_t<T>, Body>;

// The members of each kind, in one list for the writer, the reader and the check of names. A new
// member of a struct is a compile error here.

void for_each_member(Is<SignalRequest> auto&& signal, auto&& member) {
  auto& [correlation_key, wait_type, buffer, payload, traceparent] = signal;
  member(field::correlation_key, correlation_key);
  member(field::wait_type, wait_type);
  member("buffer", buffer);
  member(field::payload, payload);
  member(field::traceparent, traceparent);
}

void for_each_member(Is<CancelRequest> auto&& cancel, auto&& member) {
  auto& [reason, compensate] = cancel;
  member(field::reason, reason);
  member(field::compensate, compensate);
}

void for_each_member(Is<ResolveRequest> auto&& resolve, auto&& member) {
  auto& [idempotency_key, step_id, resolution, try_no, result, reason] = resolve;
  member(field::idempotency_key, idempotency_key);
  member(field::step_id, step_id);
  member(field::resolution, resolution);
  member(field::try_, try_no);
  member(field::result, result);
  member(field::reason, reason);
}

void for_each_member(Is<MessageRequest> auto&& message, auto&& member) {
  auto& [channel, payload, traceparent, control] = message;
  member(field::channel, channel);
  member(field::payload, payload);
  member(field::traceparent, traceparent);
  member(field::control, control);
}

void for_each_member(Is<PauseRequest> auto&& pause, auto&& member) {
  auto& [reason] = pause;
  member(field::reason, reason);
}

void for_each_member(Is<PlanRequest> auto&& plan, auto&& member) {
  auto& [task_graph, drop, reason] = plan;
  member.object(field::payload, [&](auto&& payload_member) {
    payload_member(field::drop, drop);
    payload_member(field::task_graph, task_graph);
  });
  member(field::reason, reason);
}

void for_each_member(Is<BudgetRequest> auto&& budget, auto&& member) {
  auto& [limits, reason] = budget;
  member(field::payload, limits);
  member(field::reason, reason);
}

// The member that distinguishes a stored approval from a signal.
constexpr std::string_view kApprovalName = "approval";

void for_each_payload_member(Is<ApproveRequest> auto&& approve, auto&& member) {
  member("decision", approve.decision);
  member(field::note, approve.note);
}

void for_each_member(Is<ApproveRequest> auto&& approve, auto&& member) {
  auto& [approval_id, decision, note, arguments, traceparent] = approve;
  static_cast<void>(decision), static_cast<void>(note);
  member(kApprovalName, approval_id);
  member.constant(field::wait_type, to_text(WaitType::human));
  member.object(field::payload,
                [&](auto&& payload_member) { for_each_payload_member(approve, payload_member); });
  member(field::arguments, arguments);
  member(field::traceparent, traceparent);
}

void for_each_member(Is<ChildEndedRequest> auto&& ended, auto&& member) {
  auto& [command_id, end] = ended;
  member("call", command_id);
  member("child_end", end);
}

template <class Body>
  requires Is<Body, TimersRequest> || Is<Body, ResumeRequest> || Is<Body, VersionRequest>
void for_each_member(Body&&, auto&&) {}

// What all kinds have.
void for_each_common_member(Is<ControlRequest> auto&& request, auto&& member) {
  auto& [id, by, checked_at, body] = request;
  static_cast<void>(body);
  member("id", id);
  member(field::by, by);
  member("looked_at", checked_at);
}

// Collects the members that are set.
class MemberWriter {
 public:
  void operator()(std::string_view name, const std::string& text) {
    if (!text.empty()) members_.emplace_back(name, text);
  }
  void operator()(std::string_view name, const Value& value) {
    if (!value.is_null()) members_.emplace_back(name, value);
  }
  void operator()(std::string_view name, const std::optional<Value>& value) {
    if (value) members_.emplace_back(name, *value);
  }
  void operator()(std::string_view name, const std::optional<bool>& flag) {
    if (flag) members_.emplace_back(name, *flag);
  }
  void operator()(std::string_view name, const bool& flag) {
    if (flag) members_.emplace_back(name, true);
  }
  void operator()(std::string_view name, const std::uint32_t& number) {
    if (number != 0) members_.emplace_back(name, std::uint64_t{number});
  }
  void operator()(std::string_view name, const std::optional<Instant>& at) {
    if (at) members_.emplace_back(name, to_text(*at));
  }
  void operator()(std::string_view name, const Limits& limits) {
    members_.emplace_back(name, engine::to_json(limits));
  }
  void constant(std::string_view name, std::string_view text) { members_.emplace_back(name, text); }
  void object(std::string_view name, auto&& visit_members) {
    MemberWriter inner;
    visit_members(inner);
    members_.emplace_back(name, std::move(inner).object());
  }

  Value object() && { return Value::object(std::move(members_)); }

 private:
  std::vector<Member> members_;
};

// Reads the members that are present. One of another type than its own is absent.
class MemberReader {
 public:
  explicit MemberReader(const Value& json) : json_(json) {}

  void operator()(std::string_view name, std::string& text) { text = json_.text(name); }
  void operator()(std::string_view name, Value& value) { value = json_[name]; }
  void operator()(std::string_view name, std::optional<Value>& value) {
    if (const Value* found = json_.find(name)) value = *found;
  }
  void operator()(std::string_view name, std::optional<bool>& flag) {
    if (json_[name].is_bool()) flag = json_[name].as_bool();
  }
  void operator()(std::string_view name, bool& flag) { flag = json_[name] == Value(true); }
  void operator()(std::string_view name, std::uint32_t& number) {
    if (json_[name].is_integer()) number = static_cast<std::uint32_t>(json_[name].as_int());
  }
  void operator()(std::string_view name, std::optional<Instant>& at) {
    if (json_.find(name) != nullptr) read(instant_from_text(json_.text(name)), at);
  }
  void operator()(std::string_view name, Limits& limits) {
    auto read_limits = limits_of(json_[name]);
    if (!read_limits) read_limits.error().code = Code::input_invalid;
    read(std::move(read_limits), limits);
  }
  void constant(std::string_view, std::string_view) {}
  void object(std::string_view name, auto&& visit_members) {
    visit_members(MemberReader(json_[name]));
  }

  // Fails with input_invalid: a time or a limit that cannot be read.
  const Status& status() const { return status_; }

 private:
  template <class T>
  void read(Result<T> value, auto& to) {
    if (value) {
      to = *std::move(value);
    } else if (status_) {
      status_ = std::unexpected(std::move(value).error());
    }
  }

  const Value& json_;
  Status status_;
};

// Searches a name.
class MemberFinder {
 public:
  explicit MemberFinder(std::string_view wanted) : wanted_(wanted) {}

  void operator()(std::string_view name, auto&) { found_ = found_ || name == wanted_; }
  void constant(std::string_view name, std::string_view) { found_ = found_ || name == wanted_; }
  void object(std::string_view name, auto&&) { found_ = found_ || name == wanted_; }

  bool found() const { return found_; }

 private:
  std::string_view wanted_;
  bool found_ = false;
};

// Of the inbox entry (engine/heart/side_record.h); a reader may have removed it.
constexpr std::string_view kChecksumName = "checksum";

// Has a request of any kind a member of this name?
template <class... Bodies>
bool is_member(std::string_view name, std::type_identity<std::variant<Bodies...>>) {
  MemberFinder finder(name);
  for_each_common_member(ControlRequest(), finder);
  (for_each_member(Bodies(), finder), ...);
  return finder.found() || name == field::kind || name == kChecksumName;
}

// An empty request of the first struct with this kind; nullopt: unknown.
template <class... Bodies>
std::optional<RequestBody> body_of_kind(std::string_view kind,
                                        std::type_identity<std::variant<Bodies...>>) {
  std::optional<RequestBody> body;
  static_cast<void>(((kind == Bodies::kKind && (body = Bodies(), true)) || ...));
  return body;
}

constexpr std::type_identity<RequestBody> kBodies{};

// What a request is about, for the id of its entry.
struct Subject {
  std::string about, channel;
};
Subject subject_of(const SignalRequest& signal) {
  return {.about = signal.correlation_key, .channel = {}};
}
Subject subject_of(const ApproveRequest& approve) {
  return {.about = approve.approval_id, .channel = {}};
}
Subject subject_of(const MessageRequest& message) {
  return {.about = {}, .channel = message.channel};
}
Subject subject_of(const auto&) { return {}; }

}  // namespace

Value ApproveRequest::payload() const {
  MemberWriter writer;
  for_each_payload_member(*this, writer);
  return std::move(writer).object();
}

Value ControlRequest::to_json() const {
  MemberWriter writer;
  for_each_common_member(*this, writer);
  std::visit(
      [&](const auto& kind) {
        writer(field::kind, std::string(kind.kKind));
        for_each_member(kind, writer);
      },
      body);
  return std::move(writer).object();
}

Result<ControlRequest> ControlRequest::from_json(const Value& json) {
  const std::string kind(json.text(field::kind));
  auto body = body_of_kind(kind, kBodies);
  if (body && kind == ApproveRequest::kKind && !json.text(kApprovalName).empty()) {
    body = ApproveRequest();
  }
  if (!body) return fail(Code::needs_version, "a control request of the unknown kind \"{}\"", kind);
  // A member from a newer program may change the meaning of the others.
  for (const auto& [name, value] : json.members()) {
    if (is_member(name, kBodies)) continue;
    return fail(Code::needs_version, "a control request ({}) with the unknown member \"{}\"", kind,
                name);
  }
  ControlRequest request{.body = *std::move(body)};
  MemberReader reader(json);
  for_each_common_member(request, reader);
  std::visit([&](auto& members) { for_each_member(members, reader); }, request.body);
  AE_TRY(reader.status());
  return request;
}

std::string inbox_id(const ControlRequest& request) {
  const Subject subject =
      std::visit([](const auto& body) { return subject_of(body); }, request.body);
  const std::size_t number = std::visit(
      [](const auto& body) { return body_of_kind(body.kKind, kBodies)->index(); }, request.body);
  return to_hex(sha256(canonical(Value::object({{"about", subject.about},
                                                {field::channel, subject.channel},
                                                {"id", request.id},
                                                {field::kind, static_cast<int>(number)}}))));
}

bool is_too_large(const ControlRequest& request) {
  const Value json = request.to_json();
  return canonical_exceeds(json[field::payload], kValueMax) ||
         canonical_exceeds(json[field::result], kValueMax);
}

}  // namespace ae::engine
