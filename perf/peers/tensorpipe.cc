/* Latency and bandwidth of TensorPipe between two processes: one cpu tensor a message, buffers
 * reused, each step begun in the callback of the one before.
 *
 *   tensorpipe shm|uv [BYTES...] */
#include <atomic>
#include <csignal>
#include <cstring>
#include <functional>
#include <future>
#include <memory>
#include <string>
#include <vector>

#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <tensorpipe/tensorpipe.h>

#include "peers/peers.h"

namespace tp = tensorpipe;

namespace
{

constexpr size_t url_bytes = 512;

void must(const tp::Error &error)
{
    if (error) {
        peers_give_up("tensorpipe", error.what().c_str());
    }
}

/* One end of a pipe. Callbacks run in TensorPipe's own thread, one after the other. */
class End
{
  public:
    End(std::shared_ptr<tp::Pipe> pipe, size_t largest)
        : pipe_(std::move(pipe)), outgoing_(largest, 0x5a), incoming_(largest, 0x5a)
    {
    }

    void send(size_t bytes, std::function<void()> then)
    {
        tp::Message message;
        tp::Message::Tensor tensor;
        tensor.buffer = tp::CpuBuffer{outgoing_.data()};
        tensor.length = bytes;
        message.tensors.push_back(tensor);
        pipe_->write(message, [then](const tp::Error &error) {
            must(error);
            then();
        });
    }

    /* begun: the next receive may be asked for; done: the tensor is there. */
    void receive(std::function<void()> begun, std::function<void()> done)
    {
        pipe_->readDescriptor([this, begun, done](const tp::Error &error, tp::Descriptor) {
            must(error);
            tp::Allocation allocation;
            tp::Allocation::Tensor tensor;
            tensor.buffer = tp::CpuBuffer{incoming_.data()};
            allocation.tensors.push_back(tensor);
            pipe_->read(allocation, [done](const tp::Error &failure) {
                must(failure);
                done();
            });
            begun();
        });
    }

    /* Each of these returns when it has happened so many times. */
    void ping(size_t bytes, uint64_t times)
    {
        wait([&](const Over &over) {
            left_ = static_cast<int64_t>(times);
            ping_next(bytes, over);
        });
    }

    void pong(size_t bytes, uint64_t times)
    {
        wait([&](const Over &over) {
            left_ = static_cast<int64_t>(times);
            pong_next(bytes, over);
        });
    }

    void pour(size_t bytes, uint64_t times)
    {
        wait([&](const Over &over) {
            left_ = static_cast<int64_t>(times);
            unfinished_ = static_cast<int64_t>(times) + 1; /* with the answer */
            receive([] {}, [this, over] { finish_one(over); });
            for (unsigned i = 0; i < PEERS_WINDOW; i++) {
                pour_next(bytes, over);
            }
        });
    }

    void sink(uint64_t times)
    {
        wait([&](const Over &over) {
            left_ = static_cast<int64_t>(times);
            wanted_ = times;
            sink_next(over);
        });
    }

  private:
    using Over = std::shared_ptr<std::promise<void>>; /* callbacks may outlive the wait */

    template <typename Begin> static void wait(Begin begin)
    {
        auto over = std::make_shared<std::promise<void>>();
        begin(over);
        over->get_future().wait();
    }

    void ping_next(size_t bytes, const Over &over)
    {
        send(bytes, [] {});
        receive([] {},
                [this, bytes, over] {
                    if (--left_ == 0) {
                        over->set_value();
                    } else {
                        ping_next(bytes, over);
                    }
                });
    }

    void pong_next(size_t bytes, const Over &over)
    {
        receive([] {},
                [this, bytes, over] {
                    bool last = --left_ == 0;
                    send(bytes, [last, over] {
                        if (last) {
                            over->set_value();
                        }
                    });
                    if (!last) {
                        pong_next(bytes, over);
                    }
                });
    }

    void pour_next(size_t bytes, const Over &over)
    {
        if (left_.fetch_sub(1) > 0) {
            send(bytes, [this, bytes, over] {
                pour_next(bytes, over);
                finish_one(over);
            });
        }
    }

    void finish_one(const Over &over)
    {
        if (unfinished_.fetch_sub(1) == 1) {
            over->set_value();
        }
    }

    void sink_next(const Over &over)
    {
        receive(
            [this, over] {
                if (--wanted_ > 0) {
                    sink_next(over);
                }
            },
            [this, over] {
                if (--left_ == 0) {
                    send(1, [over] { over->set_value(); });
                }
            });
    }

    std::shared_ptr<tp::Pipe> pipe_;
    std::vector<unsigned char> outgoing_, incoming_;
    std::atomic<int64_t> left_{0}, unfinished_{0};
    uint64_t wanted_ = 0;
};

std::shared_ptr<tp::Context> make_context(bool shm)
{
    auto context = std::make_shared<tp::Context>();
    if (shm) {
        context->registerTransport(0, "shm", tp::transport::shm::create());
        context->registerChannel(1, "cma", tp::channel::cma::create());
    } else {
        context->registerTransport(0, "uv", tp::transport::uv::create());
    }
    context->registerChannel(0, "basic", tp::channel::basic::create());
    return context;
}

std::shared_ptr<tp::Pipe> accept_pipe(tp::Context &context, bool shm, int tell,
                                      std::shared_ptr<tp::Listener> &listener)
{
    char url[url_bytes] = "";
    listener = context.listen({shm ? "shm://" : "uv://127.0.0.1"});
    snprintf(url, sizeof(url), "%s", listener->url(shm ? "shm" : "uv").c_str());
    if (write(tell, url, sizeof(url)) != sizeof(url)) {
        peers_give_up("tensorpipe", "the client is gone");
    }
    std::promise<std::shared_ptr<tp::Pipe>> accepted;
    listener->accept([&accepted](const tp::Error &error, std::shared_ptr<tp::Pipe> pipe) {
        must(error);
        accepted.set_value(std::move(pipe));
    });
    return accepted.get_future().get();
}

std::shared_ptr<tp::Pipe> connect_pipe(tp::Context &context, int tell)
{
    char url[url_bytes];
    if (read(tell, url, sizeof(url)) != sizeof(url)) {
        peers_give_up("tensorpipe", "the server is gone");
    }
    return context.connect(url);
}

void serve(End &end, size_t bytes)
{
    end.pong(bytes, peers_warm_up(bytes));
    end.pong(bytes, peers_operations(bytes));
    end.sink(peers_operations(bytes));
}

void measure(End &end, const std::string &kind, size_t bytes)
{
    end.ping(bytes, peers_warm_up(bytes));
    double start_us = peers_now_us();
    end.ping(bytes, peers_operations(bytes));
    peers_latency(("tensorpipe_" + kind + "_lat").c_str(), bytes, peers_now_us() - start_us);
    start_us = peers_now_us();
    end.pour(bytes, peers_operations(bytes));
    peers_bandwidth(("tensorpipe_" + kind + "_bw").c_str(), bytes, peers_now_us() - start_us);
}

} // namespace

int main(int argc, char **argv)
{
    size_t sizes[PEERS_SIZES_MAX], largest = 1;
    int told[2];
    std::string kind = argc < 2 ? "" : argv[1];
    if (kind != "shm" && kind != "uv") {
        fprintf(stderr, "usage: tensorpipe shm|uv [BYTES...]\n");
        return 2;
    }
    size_t count = peers_sizes(argc, argv, sizes);
    for (size_t i = 0; i < count; i++) {
        largest = sizes[i] > largest ? sizes[i] : largest;
    }
    pid_t server = pipe(told) < 0 ? -1 : fork(); /* before TensorPipe has threads */
    if (server < 0) {
        peers_give_up("tensorpipe", strerror(errno));
    }
    auto context = make_context(kind == "shm");
    std::shared_ptr<tp::Listener> listener;
    if (server == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        End end(accept_pipe(*context, kind == "shm", told[1], listener), largest);
        for (size_t i = 0; i < count; i++) {
            serve(end, sizes[i]);
        }
        context->join();
        return 0;
    }
    End end(connect_pipe(*context, told[0]), largest);
    for (size_t i = 0; i < count; i++) {
        measure(end, kind, sizes[i]);
    }
    waitpid(server, nullptr, 0); /* its last write ends while this end is there */
    context->join();
    return 0;
}
