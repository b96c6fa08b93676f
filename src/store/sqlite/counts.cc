// Counts of the jobs that match a filter (JobCounts). Each statement examines at most kJobCountMax
// jobs, the newest first, and one more to know whether there are others.
#include <string>
#include <string_view>
#include <vector>

#include "store/rules.h"
#include "store/sqlite/reader.h"

namespace ae::store::sqlite {
namespace {

// " FROM (SELECT … LIMIT …) AS examined"
std::string from_examined(const std::string& source) {
  return " FROM (" + source + " LIMIT " + std::to_string(kJobCountMax + 1) + ") AS examined";
}

// The condition of a filter on the rows of a subquery `examined`. Its parameters follow ?1.
class CountCondition {
 public:
  explicit CountCondition(const CountFilter& filter) {
    if (!filter.agent.empty()) {
      by_agent_ = "agent = " + parameter(filter.agent);
      sql_ += " AND " + by_agent_;
    }
    if (!filter.queue.empty()) sql_ += " AND queue = " + parameter(filter.queue);
    if (filter.created_from)
      sql_ += " AND created_at >= " + std::to_string(filter.created_from->us);
    for (const auto& [key, value] : filter.labels) {
      const std::string is_label = "key = " + parameter(key) + " AND value = " + parameter(value);
      if (by_label_.empty()) by_label_ = is_label;
      sql_ +=
          " AND EXISTS (SELECT 1 FROM labels WHERE labels.job = examined.id AND " + is_label + ")";
    }
  }

  // "true", or "true AND …".
  const std::string& sql() const { return sql_; }
  // The columns that it needs.
  std::string_view columns() const {
    return sql_ == "true" ? "id" : "id, agent, queue, created_at";
  }
  // The jobs that the count of the completed ones examines.
  std::string completed_source() const {
    if (!by_label_.empty()) {
      return "SELECT jobs.id AS id, agent, queue, created_at, status FROM labels CROSS JOIN jobs "
             "ON jobs.id = labels.job WHERE " +
             by_label_ + " ORDER BY labels.job DESC";
    }
    return "SELECT id, agent, queue, created_at, status FROM jobs" +
           (by_agent_.empty() ? "" : " WHERE " + by_agent_) + " ORDER BY id DESC";
  }
  void bind(Statement& statement) const {
    for (std::size_t i = 0; i < texts_.size(); ++i) {
      statement.set(static_cast<int>(i) + 2, texts_[i]);
    }
  }

 private:
  std::string parameter(const std::string& value) {
    texts_.push_back(value);
    return "?" + std::to_string(texts_.size() + 1);
  }

  std::string sql_ = "true", by_agent_, by_label_;
  std::vector<std::string> texts_;
};

}  // namespace

Sql<JobCounts> ReadStatements::count_matching(const CountFilter& filter) {
  Snapshot snapshot(begin_, end_);
  AE_TRY(snapshot.open());
  const CountCondition condition(filter);
  const std::string columns(condition.columns());
  JobCounts counts;
  AE_ASSIGN(Statement of_status,
            db_.prepare("SELECT count(*), coalesce(sum(" + condition.sql() + "), 0)" +
                        from_examined("SELECT " + columns +
                                      " FROM jobs WHERE status = ?1 AND status <> 'completed' "
                                      "ORDER BY id DESC")));
  for (const std::string_view status : kIndexedStatuses) {
    Rows row(of_status, status);
    condition.bind(of_status);
    AE_TRY(row.next());
    counts.statuses[std::string(status)] = job_count(row->count(0), row->count(1));
  }
  AE_ASSIGN(Statement completed,
            db_.prepare("SELECT count(*), coalesce(sum(status = 'completed' AND " +
                        condition.sql() + "), 0)" + from_examined(condition.completed_source())));
  {
    Rows row(completed);
    condition.bind(completed);
    AE_TRY(row.next());
    counts.statuses[std::string(kCompleted)] = job_count(row->count(0), row->count(1));
  }
  AE_ASSIGN(Statement pending,
            db_.prepare("SELECT pending, count(*), coalesce(sum(" + condition.sql() + "), 0)" +
                        from_examined("SELECT pending, " + columns +
                                      " FROM jobs WHERE pending <> 0 ORDER BY id DESC") +
                        " GROUP BY pending"));
  PendingCounter counter;
  Rows row(pending);
  condition.bind(pending);
  for (;;) {
    AE_ASSIGN(const bool more, row.next());
    if (!more) break;
    counter.add(static_cast<PendingKinds>(row->count(0)), row->count(1), row->count(2));
  }
  counts.pending = counter.take();
  return counts;
}

}  // namespace ae::store::sqlite
