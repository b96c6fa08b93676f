#include "store/postgres/counts.h"

#include <cstddef>
#include <iterator>
#include <string>
#include <string_view>
#include <vector>

#include "store/postgres/statements.h"
#include "store/rules.h"

namespace ae::store::postgres {
namespace {

// A statement that counts the rows of a subquery `examined`, which has `number` and `queue` of
// jobs, and those of them that match the filter. It examines at most kJobCountMax jobs, and one
// more to know whether there are others.
class CountStatement {
 public:
  explicit CountStatement(const CountFilter& filter) : filter_(filter) {}

  void add_indexed(Connection& connection, std::string_view status) {
    const std::string examined =
        "SELECT job AS number, queue FROM heads WHERE status = " + parameter(status, "text") +
        " AND status <> 'completed' ORDER BY job DESC" + limit();
    send(connection, "", examined, "", "");
  }
  // `completed` has no index.
  void add_completed(Connection& connection) {
    std::string newest = "SELECT number FROM jobs ORDER BY number DESC";
    if (!filter_.labels.empty()) {
      const auto& [key, value] = filter_.labels.front();
      newest = "SELECT job AS number FROM labels WHERE key = " + parameter(key, "text");
      newest += " AND value = " + parameter(value, "text") + " ORDER BY job DESC";
    } else if (!filter_.agent.empty()) {
      newest = "SELECT number FROM jobs WHERE agent = " + parameter(filter_.agent, "text") +
               " ORDER BY number DESC";
    }
    send(connection, "",
         "SELECT newest.number, h.queue, h.status FROM (" + newest + limit() +
             ") AS newest JOIN heads h ON h.job = newest.number",
         " AND examined.status = 'completed'", "");
  }
  void add_pending(Connection& connection) {
    send(connection, "examined.pending, ",
         "SELECT job AS number, queue, pending FROM heads WHERE pending <> 0 ORDER BY job DESC" +
             limit(),
         "", " GROUP BY examined.pending");
  }

 private:
  static std::string limit() { return " LIMIT " + std::to_string(kJobCountMax + 1); }
  std::string parameter(const auto& value, std::string_view type) {
    params_.add(value);
    return "$" + std::to_string(++parameters_) + "::" + std::string(type);
  }
  // Of the columns of `examined` and of the job `j`.
  std::string condition() {
    std::string sql;
    if (!filter_.agent.empty()) sql += " AND j.agent = " + parameter(filter_.agent, "text");
    if (!filter_.queue.empty()) sql += " AND examined.queue = " + parameter(filter_.queue, "text");
    if (filter_.created_from) {
      sql += " AND j.created_at >= " + parameter(*filter_.created_from, "bigint");
    }
    for (const auto& [key, value] : filter_.labels) {
      sql += " AND EXISTS (SELECT 1 FROM labels l WHERE l.job = examined.number AND l.key = " +
             parameter(key, "text");
      sql += " AND l.value = " + parameter(value, "text") + ")";
    }
    return sql;
  }
  void send(Connection& connection, const std::string& first, const std::string& examined,
            const std::string& also, const std::string& end) {
    const bool reads_jobs = !filter_.agent.empty() || filter_.created_from;
    connection.add_unprepared("SELECT " + first + "count(*), count(*) FILTER (WHERE true" + also +
                                  condition() + ") FROM (" + examined + ") AS examined" +
                                  (reads_jobs ? " JOIN jobs j ON j.number = examined.number" : "") +
                                  end,
                              params_);
  }

  const CountFilter& filter_;
  Params params_;
  int parameters_ = 0;
};

}  // namespace

Pg<JobCounts> count_matching(Connection& connection, const CountFilter& filter) {
  connection.add_unprepared(kBeginSnapshot.sql);
  for (const std::string_view status : kIndexedStatuses) {
    CountStatement(filter).add_indexed(connection, status);
  }
  CountStatement(filter).add_completed(connection);
  CountStatement(filter).add_pending(connection);
  connection.add_unprepared("COMMIT");
  auto run_result = connection.run();
  if (!run_result) return std::unexpected(connection.roll_back(std::move(run_result).error()));
  const std::vector<Rows>& answers = *run_result;
  JobCounts counts;
  std::size_t next = 1;
  const auto count_of = [](const Rows& rows) {
    return job_count(rows.count(0, 0), rows.count(0, 1));
  };
  for (const std::string_view status : kIndexedStatuses) {
    counts.statuses[std::string(status)] = count_of(answers[next++]);
  }
  counts.statuses[std::string(kCompleted)] = count_of(answers[next++]);
  PendingCounter counter;
  const Rows& pending = answers[next];
  for (int i = 0; i < pending.size(); ++i) {
    counter.add(static_cast<PendingKinds>(pending.count(i, 0)), pending.count(i, 1),
                pending.count(i, 2));
  }
  counts.pending = counter.take();
  return counts;
}

}  // namespace ae::store::postgres
