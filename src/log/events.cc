// EventBody: its type, and the schema that each event is written with.
#include "log/events.h"

#include <algorithm>

#include "log/decisions.h"
#include "log/event_type.h"
#include "log/field_names.h"
#include "log/park_until.h"

namespace ae {
namespace {

bool has(const Value& array, std::string_view member) {
  return array.is_array() && std::ranges::any_of(array.items(), [member](const Value& entry) {
           return entry.find(member) != nullptr;
         });
}

bool has_tool_with(const Value& tools, std::string_view member) {
  return tools.is_object() && std::ranges::any_of(tools.members(), [member](const Member& tool) {
           return tool.second.find(member) != nullptr;
         });
}

bool has_loop_with(const Value& nodes, std::string_view member) {
  return nodes.is_array() && std::ranges::any_of(nodes.items(), [&](const Value& node) {
           return node["loop"].find(member) != nullptr;
         });
}

// 4 adds `parent`: a reader of 3 does not inform it of the end. 3 adds `blind`; 2 adds
// `budget.spent`.
std::uint8_t schema_for(const JobCreated& event) {
  if (!event.parent.is_null()) return 4;
  if (!event.blind.is_null()) return 3;
  return event.budget.json().find("spent") != nullptr ? 2 : 1;
}

// 7 adds tools that send to other jobs, and context policies, without which requests have all
// messages; 6 adds threads; 5 adds tools that create child jobs; 4 adds nodes of kind code; 3 adds
// tools whose value is recorded, which a reader of 2 would call; 2 adds strict conditions.
std::uint8_t schema_for(const PlanGenerated& event) {
  if (has_tool_with(event.task_graph["tools"], "sends")) return 7;
  if (has_loop_with(event.task_graph["nodes"], "context")) return 7;
  if (has_loop_with(event.task_graph["nodes"], "thread")) return 6;
  if (has_tool_with(event.task_graph["tools"], "child")) return 5;
  if (has(event.task_graph["nodes"], field::code)) return 4;
  if (has_tool_with(event.task_graph["tools"], "records")) return 3;
  return event.task_graph.find("conditions") != nullptr ? 2 : 1;
}

// 3 adds the origin's calls with an unknown outcome; 2 adds loops that resume in the middle.
std::uint8_t schema_for(const ForkImported& event) {
  if (!event.unknown.is_null()) return 3;
  return has(event.commands.json(), "under_way") ? 2 : 1;
}

// 4 adds changes and moves of code. 3 adds `resend` of an unknown outcome, once the tool is offered
// unchanged again: a reader of 2 leaves the call to an operator. 2 adds approvals that were denied
// or edited.
std::uint8_t schema_for(const DecisionRecorded& event) {
#define AE_DECISION(Struct, kind, states, schema, ...) \
  if (is_decision<Struct>(event)) return schema;
#include "log/define_records.h"
  return 1;
}

std::uint8_t schema_for(const ToolInvocationStarted&) { return 2; }

// 2 adds the requests of code.
std::uint8_t schema_for(const NodeStarted& event) { return event.position ? 2 : 1; }
std::uint8_t schema_for(const CommandEmitted& event) { return event.options.is_null() ? 1 : 2; }
std::uint8_t schema_for(const WaitOpened& event) {
  return event.answer_type || !event.question_text.is_null() || !event.question_data.is_null() ? 2
                                                                                               : 1;
}
std::uint8_t schema_for(const NodeFinished& event) {
  return event.delivered || !event.result.is_null() ? 2 : 1;
}

// 6 adds `usage`: a reader of 5 does not charge it. 5 adds `delivered`: a reader of 4 gives code its
// outcomes in another order. 4 adds `at`: a reader
// of 3 applies a check of this try that was made before the try ended. 3 adds `settled`: a reader of
// 2 waits for a request that was answered. 2 adds `input_required`, which a reader of 1 takes for
// `unknown`.
std::uint8_t schema_for(const ToolInvocationFinished& event) {
  if (!event.usage.is_null()) return 6;
  if (event.delivered) return 5;
  if (event.at) return 4;
  if (event.settled) return 3;
  return event.outcome == "input_required" ? 2 : 1;
}

// 2 adds `opened_at`: a reader of 1 assumes that calls of an earlier process have ended.
std::uint8_t schema_for(const JobRunning& event) { return event.opened_at ? 2 : 1; }

// 2 adds `version`: a reader of 1 takes the event that ends such a park for corruption.
std::uint8_t schema_for(const JobParked& event) {
  return event.until == park_until::kVersion ? 2 : 1;
}

// 3 adds those of child jobs. 2 adds `in_doubt`: calls whose outcome remained unknown.
std::uint8_t schema_for(const JobCompleted& event) {
  if (!event.children_in_doubt.is_null()) return 3;
  return event.in_doubt.is_null() ? 1 : 2;
}
// 2 adds the unknown calls of child jobs.
std::uint8_t schema_for(const JobFailed& event) {
  return event.children_in_doubt.is_null() ? 1 : 2;
}
std::uint8_t schema_for(const JobCancelled& event) {
  return event.children_in_doubt.is_null() ? 1 : 2;
}
// 2 adds what a child job used of the budget, and its unknown calls.
std::uint8_t schema_for(const WaitCompleted& event) {
  return event.children_in_doubt.is_null() && event.child_use.is_null() ? 1 : 2;
}

// 2 adds `control`: a reader of 1 would take it for a message.
std::uint8_t schema_for(const AgentMessage& event) { return event.control ? 2 : 1; }

std::uint8_t schema_for(const auto&) { return 1; }

}  // namespace

EventBody::EventBody() noexcept = default;
EventBody::EventBody(const EventBody& other) = default;
EventBody::EventBody(EventBody&& other) noexcept = default;
EventBody& EventBody::operator=(const EventBody& other) = default;
EventBody& EventBody::operator=(EventBody&& other) noexcept = default;
EventBody::~EventBody() = default;
EventBody::EventBody(const UnknownEvent& event) : EventVariant(event) {}
EventBody::EventBody(UnknownEvent&& event) noexcept : EventVariant(std::move(event)) {}
// The type is named, because overload resolution over all events takes a compiler seconds.
#define AE_EVENT(Struct, name, number, event_class, schema, ...)                                 \
  EventBody::EventBody(const Struct& event) : EventVariant(std::in_place_type<Struct>, event) {} \
  EventBody::EventBody(Struct&& event) noexcept                                                  \
      : EventVariant(std::in_place_type<Struct>, std::move(event)) {}                            \
  EventBody::EventBody(std::in_place_type_t<Struct> empty) noexcept : EventVariant(empty) {}
#include "log/define_events.h"
bool operator==(const EventBody& a, const EventBody& b) {
  return static_cast<const EventVariant&>(a) == static_cast<const EventVariant&>(b);
}

EventType type_of(const EventBody& body) noexcept {
  return std::visit(
      []<class E>(const E& event) {
        if constexpr (std::is_same_v<E, UnknownEvent>) {
          return event.type;
        } else {
          return E::kType;
        }
      },
      body);
}

std::uint8_t schema_of(const EventBody& body) noexcept {
  return std::visit([](const auto& event) { return schema_for(event); }, body);
}

}  // namespace ae
