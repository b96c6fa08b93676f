#include "cli/job_tree.h"

#include <fmt/core.h>

#include <cstdint>
#include <ranges>
#include <utility>
#include <vector>

#include "cli/job_reads.h"
#include "log/field_names.h"

namespace ae::cli {
namespace {

constexpr std::size_t kTreeJobsMax = 1000;  // of a tree
constexpr char kTreePage[] = "100";

struct JobTree {
  struct Job {
    std::string id, parent;  // parent: "" = the first job
    std::size_t depth = 0;   // levels below the first job
  };
  std::vector<Job> jobs;
  bool is_complete = true;  // false: the tree has more jobs than are read
};

Result<JobTree> read_tree(app::ApiClient& client, const std::string& id) {
  JobTree tree;
  std::vector<JobTree::Job> left{{.id = id, .parent = {}, .depth = 0}};  // the next one last
  while (!left.empty()) {
    JobTree::Job job = std::move(left.back());
    left.pop_back();
    std::vector<JobTree::Job> children;
    std::string cursor;
    do {
      AE_ASSIGN(const Value page,
                get(client, {"api", "jobs"},
                    {{field::parent, job.id}, {"limit", kTreePage}, {"cursor", cursor}}));
      for (const Value& child : page["jobs"].items()) {
        children.push_back({std::string(child.text("id")), job.id, job.depth + 1});
      }
      cursor = page.text("next_cursor");
    } while (!cursor.empty() && tree.jobs.size() + left.size() + children.size() < kTreeJobsMax);
    tree.is_complete = tree.is_complete && cursor.empty();
    for (JobTree::Job& child : children | std::views::reverse) left.push_back(std::move(child));
    tree.jobs.push_back(std::move(job));
    if (tree.jobs.size() == kTreeJobsMax && !left.empty()) {
      tree.is_complete = false;
      break;
    }
  }
  return tree;
}

std::string tree_heading(const JobTree::Job& job, const Paint& paint) {
  if (job.depth == 0) return "";
  return fmt::format("\n{}\n", paint(Tint::dim, fmt::format("child job of {}, level {}",
                                                            safe(job.parent), job.depth)));
}

Value tree_json(const JobTree& tree, std::vector<Value> views) {
  std::vector<Value> jobs;
  for (std::size_t i = 0; i < views.size(); ++i) {
    const JobTree::Job& job = tree.jobs[i];
    jobs.push_back(Value::object({{"depth", std::uint64_t{job.depth}},
                                  {field::parent, job.depth == 0 ? Value() : Value(job.parent)},
                                  {"view", std::move(views[i])}}));
  }
  return Value::object({{"jobs", Value::array(std::move(jobs))}, {"more", !tree.is_complete}});
}

}  // namespace

Status print_tree(const CommonOptions& options, const std::string& id, Terminal& terminal,
                  const ShowJob& show) {
  AE_ASSIGN(const app::StoreUrl store, store_of(options));
  AE_ASSIGN(const auto client, open_to_read(store, id));
  AE_ASSIGN(const JobTree tree, read_tree(*client, id));
  std::vector<Value> views;
  for (const JobTree::Job& job : tree.jobs) {
    if (!terminal.json()) terminal.print(tree_heading(job, terminal.out()));
    AE_ASSIGN(Value view, show(*client, job.id));
    if (terminal.json()) views.push_back(std::move(view));
  }
  if (terminal.json()) terminal.print_json(tree_json(tree, std::move(views)));
  if (tree.is_complete) return {};
  terminal.note(
      fmt::format("only {} jobs of the tree are shown; `aetheris jobs --parent ID` lists "
                  "the children of each",
                  kTreeJobsMax));
  return {};
}

}  // namespace ae::cli
