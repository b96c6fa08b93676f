// A job as a conversation, page by page.
#include <memory>
#include <utility>

#include "api/asked.h"
#include "api/views.h"
#include "async/portions.h"

namespace ae::api {
namespace {

// From one reading of the whole log to the next one, for a request that waits.
constexpr Duration kReadAgainAfter = std::chrono::milliseconds(500);

}  // namespace

struct Api::TranscriptWish {
  JobId job;
  engine::TranscriptPage page;
  bool waits = false;
  std::uint64_t seen = 0;  // the last event that was read; 0 = nothing was
};

// With ?wait it is held until there is an entry after `after`, or the job has ended.
void Api::transcript(Ask ask) {
  Duration most{};
  auto wish = [&]() -> Result<TranscriptWish> {
    TranscriptWish read;
    AE_TRY(ask->query.only({"after", "limit", "wait"}));
    AE_ASSIGN(const auto after, ask->query.number("after"));
    read.page.after = after.value_or(0);
    AE_ASSIGN(read.page.limit, ask->query.limit(kEventsDefault, kEventsMax));
    AE_ASSIGN(most, wait_of(ask->query));
    read.waits = most.count() > 0;
    return read;
  }();
  if (!wish) return ask->refuse(wish.error());
  const auto job = job_id_from_text(ask->id);
  if (!job) return ask->refuse({Code::not_found, job.error().message});
  wish->job = *job;
  wait(ask, *job, most,
       [this, ask, wish = std::make_shared<TranscriptWish>(std::move(*wish))](
           const std::shared_ptr<Waiting>& waiting) {
         turns_.take(ask->request.by, [this, ask, wish, waiting](ReadTurns::Turn turn) {
           load_transcript(ask, wish, waiting, std::move(turn));
         });
       });
}

// The whole log is loaded again only when it has grown, or for the last answer.
void Api::load_transcript(const Ask& ask, std::shared_ptr<TranscriptWish> wish,
                          std::shared_ptr<Waiting> waiting, ReadTurns::Turn turn) {
  if (auto may = ask->may_grow_large(); !may) {
    waiting->over = true;
    return ask->refuse(may.error());
  }
  const bool whole = wish->seen == 0 || waiting->last;
  store_.load(wish->job, whole ? 1 : wish->seen + 1,
              [this, alive = std::weak_ptr(alive_), ask, wish, waiting, whole,
               turn = std::move(turn)](Result<store::Loaded> loaded) mutable {
                if (!alive.lock()) return;
                if (!loaded) {
                  waiting->over = true;
                  if (loaded.error().code != Code::not_found) return ask->refuse(loaded.error());
                  return ask->refuse(no_job(ask->id));
                }
                if (whole) return make_transcript(ask, wish, waiting, *loaded, std::move(turn));
                if (loaded->row.last_seq == wish->seen) return waiting->not_yet();
                wish->seen = 0;
                load_transcript(ask, wish, waiting, std::move(turn));
              });
}

void Api::make_transcript(const Ask& ask, std::shared_ptr<TranscriptWish> wish,
                          std::shared_ptr<Waiting> waiting, store::Loaded& loaded,
                          ReadTurns::Turn turn) {
  const auto body = std::make_shared<TranscriptBody>(wish->job, std::move(loaded), wish->page);
  async::in_portions(
      loop_, steady_, [body] { return body->next(); },
      [this, alive = std::weak_ptr(alive_), ask, wish, waiting, body, turn = std::move(turn)] {
        if (!alive.lock()) return;
        const auto page = body->take();
        if (!page) {
          waiting->over = true;
          return ask->refuse(page.error());
        }
        const bool answers = (*page)["entries"].size() > 0 || (*page)["ended"] == Value(true) ||
                             !wish->waits || waiting->last;
        if (!answers) {
          wish->seen = static_cast<std::uint64_t>((*page)["seq"].as_int());
          waiting->rests_until = steady_.since_start() + kReadAgainAfter;
          return waiting->not_yet();
        }
        waiting->over = true;
        ask->answer(200, *page);
      });
}

}  // namespace ae::api
