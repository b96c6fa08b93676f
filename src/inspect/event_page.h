// EventPage: a page of the events of a log that a query selects, in either direction.
//
//  {ended, events: [envelope…], last_seq, next, total}
//    ended: the job has ended. last_seq: of the log. total: how many events the query selects; null
//    if it has a filter, because counting them would read the whole log
//    next: the last event that the page takes into account, or null if it is the last page. A page
//    with a filter reads kScannedMax events at most, so it may have fewer events than `limit`
//  An envelope is as in log/event.h; with `effects` it has `kind` (inspect/effects.h). `slim`: without
//  `salts`, and members of `payload` above 256 bytes are {"$cut": bytes}.
//
// Threads: a value.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/ids.h"
#include "inspect/effects.h"
#include "json/value.h"
#include "log/event.h"

namespace ae::engine {

struct EventQuery {
  std::uint64_t after = 0;              // only events with a higher seq
  std::optional<std::uint64_t> before;  // only events with a lower seq
  bool descending = false;
  std::size_t limit = 1'000;
  std::optional<EventClass> of_class;
  bool effects = false;  // only records of effects. REQUIRES: ascending
  std::string type, step;
  std::string text;  // is in the canonical text of the envelope
  bool slim = false;

  bool is_filtered() const {
    return of_class || effects || !type.empty() || !step.empty() || !text.empty();
  }
};

// The classes of events as named in requests; a request may also name kEffectClass: the records of
// effects, of any class.
struct NamedEventClass {
  std::string_view name;
  EventClass event_class;
};
inline constexpr NamedEventClass kEventClasses[] = {
    {"history", EventClass::history},
    {"coordination", EventClass::coordination},
    {"recorded_effect", EventClass::recorded_effect},
    {"narrative", EventClass::narrative}};
inline constexpr std::string_view kEffectClass = "effect";

inline constexpr std::size_t kSlimBytes = 256;  // of a value in a slim envelope

class EventPage {
 public:
  // The events that a page with a filter reads; with `effects` it reads all, because the
  // kind of an effect depends on the events before it.
  static constexpr std::size_t kScannedMax = 20'000;

  // `kinds`: after the events before the first one that it takes. `scanned_max`: as kScannedMax.
  EventPage(const JobId& job, EventQuery query, EffectKinds kinds = {},
            std::size_t scanned_max = kScannedMax)
      : job_(job), query_(std::move(query)), scanned_max_(scanned_max), kinds_(std::move(kinds)) {}

  // Takes the events in the direction of the query. False: the page is complete.
  bool add(const Event& event);
  // After the last event that was taken.
  const EffectKinds& kinds() const { return kinds_; }
  bool has_events() const { return !events_.empty(); }
  bool has_next() const { return next_ > 0; }  // there is another page
  // The last event that was taken; 0 = none.
  std::uint64_t scanned() const { return scanned_; }
  // `last_seq`: of the log.
  Value take(std::uint64_t last_seq, bool ended) &&;

 private:
  bool selects(const Event& event) const;  // without `text`

  const JobId job_;
  const EventQuery query_;
  const std::size_t scanned_max_;
  EffectKinds kinds_;
  std::vector<Value> events_;
  std::uint64_t scanned_ = 0, next_ = 0;  // 0 = none
  std::size_t looked_at_ = 0;             // events between the bounds of the query
};

}  // namespace ae::engine
