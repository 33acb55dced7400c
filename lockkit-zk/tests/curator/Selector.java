import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.util.concurrent.SynchronousQueue;

import org.apache.curator.framework.CuratorFramework;
import org.apache.curator.framework.CuratorFrameworkFactory;
import org.apache.curator.framework.recipes.leader.LeaderSelector;
import org.apache.curator.framework.recipes.leader.LeaderSelectorListenerAdapter;
import org.apache.curator.retry.RetryOneTime;

/**
 * A participant of an election, driven by lines: "leader" prints the leader's id, "release" gives up the leadership.
 * Prints "started" when it has started, and "leads" when it leads. Arguments: server, path, id.
 */
class Selector {
    public static void main(String[] arguments) throws Exception {
        CuratorFramework client = CuratorFrameworkFactory.newClient(arguments[0], new RetryOneTime(1000));
        client.start();
        SynchronousQueue<String> release = new SynchronousQueue<>();
        LeaderSelector selector = new LeaderSelector(client, arguments[1], new LeaderSelectorListenerAdapter() {
            public void takeLeadership(CuratorFramework framework) throws Exception {
                System.out.println("leads");
                release.take();
            }
        });
        selector.setId(arguments[2]);
        selector.start();
        System.out.println("started");
        BufferedReader lines = new BufferedReader(new InputStreamReader(System.in));
        for (String line = lines.readLine(); line != null; line = lines.readLine()) {
            if (line.equals("leader")) {
                System.out.println(selector.getLeader().getId());
            } else {
                release.put(line);
            }
        }
        System.exit(0);
    }
}
