// Alive: a member that lets callbacks check whether their object still exists.
//
//   loop.post([this, alive = alive_.watch()] { if (alive) continue_work(); });
//
// Threads: any may check. Only a check on the thread that destroys the object permits its use.
#pragma once

#include <memory>
#include <utility>

namespace ae::async {

class Alive {
 public:
  class Watch {
   public:
    explicit operator bool() const { return !token_.expired(); }

   private:
    friend Alive;
    explicit Watch(std::weak_ptr<const bool> token) : token_(std::move(token)) {}

    std::weak_ptr<const bool> token_;
  };

  Alive() = default;
  Alive(const Alive&) = delete;
  Alive& operator=(const Alive&) = delete;

  Watch watch() const { return Watch(token_); }
  void end() { token_.reset(); }  // earlier than the destructor
  // Ends what is watched so far and starts again, for the next use of the same object.
  void renew() { token_ = std::make_shared<const bool>(true); }

 private:
  std::shared_ptr<const bool> token_ = std::make_shared<const bool>(true);
};

}  // namespace ae::async
