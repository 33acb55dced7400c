//! The program of the new project. It locks in the stores that need no server; the others it only contains.

#[tokio::main(flavor = "current_thread")]
async fn main() -> lockkit::Result<()> {
    let folder = std::env::args().nth(1).unwrap_or_default();
    for url in ["memory:".to_owned(), format!("file://{folder}")] {
        let client = lockkit::connect(&url).await?;
        let guard = client.lock("orders/42")?.acquire().await?;
        println!("locked in {url} with token {}", guard.token());
        guard.release().await?;
        client.close().await?;
    }
    println!("schemes: {}", lockkit::schemes().collect::<Vec<_>>().join(" "));
    Ok(())
}
