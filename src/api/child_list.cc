// The child jobs of a job: their ids follow from its calls, so its log lists them.
#include <fmt/core.h>

#include <algorithm>
#include <charconv>
#include <memory>
#include <utility>
#include <vector>

#include "api/jobs.h"
#include "api/problem.h"
#include "api/read.h"
#include "inspect/aliases.h"
#include "log/field_names.h"

namespace ae::api {
namespace {

struct ChildPage {
  std::vector<JobId> ids;  // of all children
  std::size_t next = 0, end = 0;
  std::vector<ListedJob> found;
};

Result<std::size_t> offset_of(const std::string* cursor) {
  std::size_t offset = 0;
  if (cursor == nullptr) return offset;
  const auto read = std::from_chars(cursor->data(), cursor->data() + cursor->size(), offset);
  if (read.ec == std::errc() && read.ptr == cursor->data() + cursor->size()) return offset;
  return fail(Code::input_invalid, "\"cursor\" must be one that a response returned");
}

void answer_page(ApiContext& api, const RequestPtr& ctx, ChildPage& page) {
  Value next;
  if (page.end < page.ids.size()) next = fmt::format("{}", page.end);
  answer_large(api, ctx,
               [jobs = std::move(page.found), registry = api.registry.copy(),
                next = std::move(next), total = std::uint64_t{page.ids.size()}] {
                 std::vector<Value> items;
                 items.reserve(jobs.size());
                 for (const ListedJob& job : jobs) items.push_back(listed_job_json(job, *registry));
                 return Value::object({{"jobs", Value::array(std::move(items))},
                                       {"more", !next.is_null()},
                                       {"next_cursor", next},
                                       {"scanned", total}});
               });
}

// A child that was deleted is left out.
void read_rows(ApiContext& api, RequestPtr ctx, std::shared_ptr<ChildPage> page) {
  if (page->next == page->end) return answer_page(api, ctx, *page);
  const JobId id = page->ids[page->next++];
  api.store.load(id, store::kNoCommits,
                 [&api, alive = api.alive.watch(), ctx, page](Result<store::LoadedJob> loaded) {
                   if (!alive) return;
                   if (!loaded && loaded.error().code != Code::not_found) {
                     return ctx->refuse(loaded.error());
                   }
                   if (loaded) page->found.push_back(listed_job(api, std::move(loaded->row)));
                   read_rows(api, ctx, page);
                 });
}

}  // namespace

void list_children(ApiContext& api, RequestPtr ctx) {
  auto page = std::make_shared<ChildPage>();
  std::size_t wanted = 0;
  const auto parent = [&]() -> Result<JobId> {
    AE_TRY(ctx->query.check_combination(field::parent, {"cursor", "limit"}));
    AE_ASSIGN(wanted, ctx->query.limit(100, kJobsMax));
    AE_ASSIGN(page->next, offset_of(ctx->query.find("cursor")));
    auto id = job_id_from_text(*ctx->query.find(field::parent));
    if (!id) return fail(Code::not_found, id.error().message);
    return id;
  }();
  if (!parent) return ctx->refuse(parent.error());
  api.runtime.reader().read_state<std::vector<JobId>>(
      *parent,
      [](runtime::JobSnapshot& read) -> Result<std::vector<JobId>> {
        std::vector<JobId> ids;
        ids.reserve(read.state.child_calls.size());
        for (const StepId& call : read.state.child_calls) {
          ids.push_back(child_job_id(read.state.job, call));
        }
        return ids;
      },
      [&api, alive = api.alive.watch(), ctx, page, wanted,
       id = parent->text.string()](Result<std::vector<JobId>> ids) {
        if (!alive) return;
        if (!ids && ids.error().code == Code::not_found) {
          return ctx->refuse(missing_job_error(id));
        }
        if (!ids) return ctx->refuse(ids.error());
        page->ids = *std::move(ids);
        page->next = std::min(page->next, page->ids.size());
        page->end = std::min(page->next + wanted, page->ids.size());
        read_rows(api, ctx, page);
      });
}

}  // namespace ae::api
